"""Tells casyncrun about this rank, over the pipe that the rank's wrapper opened. Without casyncrun it does nothing.

    from casync.rendezvous import launcher_pipe as report
    report.enters("MPI", None, 60.0, 600.0)   # this rank waits in init() for all ranks, with these limits
    report.met("MPI")                         # it waits no longer
    report.initialized()                      # this rank has left MPI_Init and the session's negotiation
    report.failing("ValueError: bad label")   # this rank is about to leave, and this is why
    report.unreachable(2, "no sign of life for 8 s")   # this rank is about to leave because of that one
    report.gave_up("AbortedError: rank 1 has shut down")  # another rank's doing has ended this one's session
    report.uses_gpu("GPU-3f...")   # this rank's tensors are on this one
    report.progress(0.5, "onebit")   # half of the work is done, and this is next
    report.observed({"steps": 3})    # what casync bench wants to know (observe.step_profile)
    report.leaving()                          # the program is through, and waits until all others are

`initialized` decides how long the rank may take to leave by itself after another rank failed: inside MPI_Init it
cannot. `failing` and `unreachable` fix who failed first: the interpreter of the culprit may take longer to exit than
its peers do, and a rank behind a broken link never reports at all. A rank that waits in MPI_Init cannot notice that
another one never comes: casyncrun, which hears of both, ends the job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

__all__ = [
    "enters",
    "failing",
    "gave_up",
    "initialized",
    "is_heard",
    "leaving",
    "met",
    "observed",
    "progress",
    "unreachable",
    "uses_gpu",
]

_DESCRIPTOR = "CASYNC_REPORT_FD"
_LONGEST = 2000
"""Bytes of a text in a line, as JSON writes it: with what is around it below PIPE_BUF, so that lines of several threads
stay whole.
"""


def is_heard() -> bool:
    """Whether casyncrun started this process."""
    return _DESCRIPTOR in os.environ


def enters(key: str, peers: Sequence[int] | None, warning_s: float, timeout_s: float) -> None:
    """Say that this rank waits in init() until `peers` have come, counted as mpirun does; itself among them. None: all.
    They share `key`, which is used once.
    """
    _write({"enters": key, "peers": peers and list(peers), "warning_s": warning_s, "timeout_s": timeout_s})


def met(key: str) -> None:
    """Say that this rank waits there no longer."""
    _write({"met": key})


def initialized() -> None:
    """Say that this rank can notice failures by itself from now on."""
    _write({"initialized": True})


def failing(why: str) -> None:
    """Say that this rank leaves because of its own fault, in one line of text."""
    _write({"failing": _cut(why)})


def unreachable(peer: int, why: str) -> None:
    """Say that this rank gives up because `peer`, counted as mpirun does, does not answer."""
    _write({"peer": peer, "why": _cut(why)})


def gave_up(why: str) -> None:
    """Say that what another rank did has ended this rank's session, in one line of text."""
    _write({"gave_up": _cut(why)})


def uses_gpu(uuid: str) -> None:
    """Say that this rank's tensors are on this GPU, by what CUDA calls it on every host and in every process."""
    _write({"gpu": uuid})


def progress(done: float, what: str) -> None:
    """Say how much of the work is done, from 0 to 1, and what is next; for who started the job by a call."""
    _write({"progress": done, "what": _cut(what)})


def observed(what: Mapping[str, object]) -> None:
    """Say something about the program that `casync bench` has started."""
    _write({"observed": what})


def leaving() -> None:
    """Say that this rank leaves MPI, for which it may wait until all do."""
    _write({"leaving": True})


def _cut(text: str) -> str:
    """The beginning of it. JSON writes a letter that is not ASCII in 6 bytes or 12, and a line's end in two."""
    length = 0
    for place, letter in enumerate(text):
        length += len(json.dumps(letter)) - 2
        if length > _LONGEST:
            return text[:place]
    return text


def _write(line: Mapping[str, object]) -> None:
    descriptor = os.environ.get(_DESCRIPTOR)
    if descriptor is None:
        return
    try:
        os.write(int(descriptor), json.dumps(line).encode() + b"\n")
    except OSError:  # the wrapper is gone, or a child process inherited the variable without the descriptor
        return
