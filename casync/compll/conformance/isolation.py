"""A check in a process of its own, so that a codec which crashes is a finding and not the end of the kit."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import traceback

from casync.compll.conformance.subject import Subject
from casync.compll.conformance.trial import Check, Result, perform

__all__ = ["isolated"]

_CASE_BYTES = 4096


def isolated(check: Check, subject: Subject) -> Result:
    """`perform` in a fork; of one that dies, the signal and the case it was at."""
    at = mmap.mmap(-1, _CASE_BYTES)  # shared with the child
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work(check, subject, at, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        outcome: Result = pickle.loads(result)
        return outcome
    case = at[:].split(b"\0")[0].decode(errors="replace")
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return Result(check.name, False, f"the process that tried it {how}", case)


def _work(check: Check, subject: Subject, at: mmap.mmap, writer: int) -> None:
    def note(case: str) -> None:
        text = case.encode()[: _CASE_BYTES - 1]
        at[: len(text) + 1] = text + b"\0"

    status = 1
    with contextlib.suppress(BaseException):  # nothing may return into the parent's code
        try:
            result = pickle.dumps(perform(check, subject, note))
            while result:
                result = result[os.write(writer, result) :]
            status = 0
        except BaseException:
            traceback.print_exc()
    os._exit(status)
