"""What a rank tells casyncrun about itself, over the pipe that its wrapper opened; without casyncrun a no-op.

    from casync.launcher import report
    report.initialized()                      # this rank has left MPI_Init and the session's negotiation
    report.failing("ValueError: bad label")   # this rank is about to leave, and this is why
    report.unreachable(2, "no sign of life for 8 s")   # this rank is about to leave because of that one

`initialized` decides how long the rank may take to leave by itself after another rank failed: inside MPI_Init it
cannot. `failing` and `unreachable` fix who failed first: the interpreter of the culprit may take longer to exit than
its peers do, and a rank behind a broken link never reports at all.
"""

from __future__ import annotations

import json
import os

__all__ = ["failing", "initialized", "unreachable"]

_LONGEST = 2000  # with the JSON around it below PIPE_BUF, so that lines of several threads stay whole


def initialized() -> None:
    """Say that this rank can notice failures by itself from now on."""
    _write({"initialized": True})


def failing(why: str) -> None:
    """Say that this rank leaves because of its own fault, in one line of text."""
    _write({"failing": why[:_LONGEST]})


def unreachable(peer: int, why: str) -> None:
    """Say that this rank gives up because `peer`, counted as mpirun does, does not answer."""
    _write({"peer": peer, "why": why[:_LONGEST]})


def _write(line: dict[str, object]) -> None:
    descriptor = os.environ.get("CASYNC_REPORT_FD")
    if descriptor is None:
        return
    try:
        os.write(int(descriptor), json.dumps(line).encode() + b"\n")
    except OSError:  # the wrapper is gone, or a child process inherited the variable without the descriptor
        return
