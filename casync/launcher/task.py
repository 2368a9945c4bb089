"""The program of a rank of `casync.run`. It reads the function from stdin, calls it, and writes the result to a file.

from casync.launcher import task
stdin = task.pack(function, args, kwargs)      # where casync.run was called
task.unpack(written)                           # what the rank wrote: Returned or Raised
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Raised", "Returned", "main", "pack", "unpack"]


@dataclass(frozen=True)
class Returned:
    """The function's value."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The function's exception: its class and text, its traceback, and itself where it can be pickled."""

    what: str
    trace: str
    exception: BaseException | None


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return, as bytes, the call, and where to look for the modules that it names."""
    import cloudpickle

    return pickle.dumps((list(sys.path), cloudpickle.dumps((function, tuple(args), dict(kwargs)))))


def unpack(written: bytes) -> Returned | Raised | None:
    """Return what `main` wrote; None where its rank died while it did."""
    try:
        found = pickle.loads(written)
    except (EOFError, pickle.UnpicklingError):
        return None
    if len(found) == 1:
        return Returned(pickle.loads(found[0]))
    what, trace, pickled = found
    try:
        exception = pickle.loads(pickled) if pickled else None
    except Exception:  # its class may not be known here, or want other arguments than it was pickled with
        exception = None
    return Raised(what, trace, exception if isinstance(exception, BaseException) else None)


def main() -> None:
    """Run the call on stdin. An exception is written down and then goes its way, so that the other ranks hear of it."""
    from casync.launcher.rank.wire import RESULT_FD

    result = int(os.environ.pop(RESULT_FD))
    os.set_inheritable(result, False)
    path, call = pickle.loads(sys.stdin.buffer.read())
    sys.path += [entry for entry in path if entry not in sys.path]
    import cloudpickle

    try:
        function, args, kwargs = pickle.loads(call)
        written = (cloudpickle.dumps(function(*args, **kwargs)),)
    except Exception as error:
        _write(result, _describe(error))
        raise
    _write(result, written)


def _describe(error: Exception) -> tuple[str, str, bytes]:
    import cloudpickle

    from casync.rendezvous import launcher_pipe as report

    what = "".join(traceback.format_exception_only(error)).strip()
    report.failing(what)
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:  # it holds something that cannot be sent: its text must do
        pickled = b""
    return what, "".join(traceback.format_exception(error)), pickled


def _write(result: int, written: tuple[Any, ...]) -> None:
    with os.fdopen(result, "wb") as file:
        pickle.dump(written, file)


if __name__ == "__main__":
    main()
