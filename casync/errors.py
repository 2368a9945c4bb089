"""The errors that CaSync raises: when it does so, and what to do about it.

`HorovodInternalError` keeps Horovod's name, because scripts catch it: everything that can end an operation after it was
submitted is one. A wrong argument is a `ValueError` and nothing was submitted. All are `RuntimeError`s.

What an error is about is in its fields, so that no program has to read the text:

    except PeerFailureError as error:
        log.error("%s: lost rank %s in %s of %s", error.kind, error.peer, error.op, error.tensor)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from casync._constants import ERROR_KINDS

__all__ = [
    "ERROR_KINDS",
    "AbortedError",
    "CallOrderError",
    "CasyncError",
    "CorruptPayloadError",
    "DeviceError",
    "HorovodInternalError",
    "InvalidArgumentError",
    "JobError",
    "MismatchError",
    "NotAvailableError",
    "PeerFailureError",
    "StallError",
    "StartError",
    "StorageError",
    "error_of",
]


class CasyncError(RuntimeError):
    """Root of everything CaSync raises on purpose. Raised as such only for an error of CaSync itself: please report it
    in the project's issue tracker, with its text and what `casync doctor` prints.

    Args:
        args: the text.
        kind: what went wrong, one of `ERROR_KINDS`; None: the usual kind of the class. docs/errors.md lists them.
        tensor: its name.
        op: "allreduce", "allgather" and so on.
        rank: who raises it.
        peer: the rank to blame, which may be `rank` itself.

    All are attributes, and None where they do not apply. Ranks are counted as casyncrun does, also inside a process
    set. They survive pickling.
    """

    USUAL_KIND: ClassVar[str] = "internal"

    def __init__(
        self,
        *args: object,
        kind: str | None = None,
        tensor: str | None = None,
        op: str | None = None,
        rank: int | None = None,
        peer: int | None = None,
    ) -> None:
        super().__init__(*args)
        self.kind = kind or self.USUAL_KIND
        self.tensor = tensor
        self.op = op
        self.rank = rank
        self.peer = peer


class InvalidArgumentError(CasyncError, ValueError):
    """A wrong argument, found where it was given; nothing was submitted, and the session stays usable.

    Remedy: the text names the argument and what is accepted.
    """

    USUAL_KIND = "invalid_argument"


class CallOrderError(InvalidArgumentError, AssertionError):
    """A call came while gradients were under way, which it would lose or count twice. Nothing was changed. It is an
    `AssertionError`, as Horovod raises there.

    Remedy: the text says which call comes first.
    """


class NotAvailableError(CasyncError, NotImplementedError):
    """Something that this build or version does not have: a device, a dtype, a part of Horovod's interface.

    Never silently weaker: what is missing is an error, not a fallback. Remedy: the text says what there is instead.
    """

    USUAL_KIND = "not_available"


class StartError(CasyncError):
    """The processes of the job cannot form one world: a rank did not come in time, a port is taken, a name cannot be
    resolved, two processes say that they are one rank. Raised by `init()`.

    Remedy: the text says who or what is missing, and what to change.
    """

    USUAL_KIND = "start"


class StorageError(CasyncError):
    """A file could not be read or written: a checkpoint's shard is damaged, a folder is missing, a disk is full.

    Raised on every rank, also where one rank alone has met it; the session stays usable. Remedy: the text names the
    rank, the file, and what the system said.
    """

    USUAL_KIND = "storage"


class JobError(CasyncError):
    """A job of `casync.run` could not start, or a rank of it raised or died. Raised where the job was started.

    Remedy: the text names the first rank that failed and carries its traceback; its exception is the cause of this one.
    """

    USUAL_KIND = "job"


class DeviceError(CasyncError):
    """A GPU, or its driver, is not there or failed in this call; nothing was submitted. One that fails later ends the
    session with an `AbortedError`, whose `kind` is "device" on its rank.

    Remedy: the text quotes CUDA, and says what to install or to free.
    """

    USUAL_KIND = "device"


class HorovodInternalError(CasyncError):
    """An operation was submitted and did not complete; the subclass says why. Raised by `synchronize` on every rank it
    concerns.
    """


class MismatchError(HorovodInternalError):
    """Ranks submitted the same name with another shape, dtype, op, root or codec, or something that needs every rank
    while one had joined. The session stays usable.

    Remedy: the text shows what each side had, and where in the program each side submitted it; make the two lines
    agree.
    """

    USUAL_KIND = "mismatch"


class PeerFailureError(HorovodInternalError):
    """Another rank died, was stopped, or cannot be reached. The session is over on all ranks.

    Remedy: the text names the rank and how it was noticed; look at that rank's own output first. Raise
    `CASYNC_PEER_TIMEOUT_SECONDS` if a healthy rank may be silent that long.
    """

    USUAL_KIND = "peer_gone"


class AbortedError(HorovodInternalError):
    """Another rank left with an exception, or the session was shut down while the operation was outstanding.

    Remedy: the text carries the other rank's exception with its file and line; that is the one to fix.
    """

    USUAL_KIND = "aborted"


class StallError(HorovodInternalError):
    """The operation did not finish within the timeout because some rank never submitted it.

    Remedy: the text is the stall report: which ranks are missing, and where the others submitted it. Raise
    `CASYNC_TIMEOUT_SECONDS` if a rank may legitimately be that late.
    """

    USUAL_KIND = "stalled"


class CorruptPayloadError(HorovodInternalError):
    """Received bytes are not what the plan says they must be: truncated, foreign, or damaged on the way.

    The session is over on all ranks. Remedy: the text names the rank that sent the bytes, the one that noticed, and the
    tensor if it is known. Run the same version of CaSync on all ranks; if it does, suspect the sender's network or
    memory.
    """

    USUAL_KIND = "corrupt_payload"


SESSION_IS_OVER = (PeerFailureError, AbortedError, CorruptPayloadError)
"""After one of these the session is over, on all ranks."""


_CLASSES: dict[str, type[CasyncError]] = {
    "invalid_argument": InvalidArgumentError,
    "unfit_plan": InvalidArgumentError,
    "unloaded_codec": InvalidArgumentError,
    "not_available": NotAvailableError,
    "job": JobError,
    "mismatch": MismatchError,
    "joined": MismatchError,
    "peer_gone": PeerFailureError,
    "peer_silent": PeerFailureError,
    "aborted": AbortedError,
    "shut_down": AbortedError,
    "fault": AbortedError,
    "stalled": StallError,
    "corrupt_payload": CorruptPayloadError,
    "device": AbortedError,
    "start": StartError,
    "storage": StorageError,
}


def error_of(kind: str, text: str, **fields: Any) -> CasyncError:
    """Make the error that the core raises with this kind where an operation ends. It is for glue in C, which is told
    the number and the text.
    """
    return _CLASSES.get(kind, CasyncError)(text, kind=kind, **fields)


def __getattr__(name: str) -> Any:
    """`ERROR_KINDS`: every `kind` there is. Looked up late, because the build runs CompLL, which imports these errors,
    before it has made the constants.
    """
    if name != "ERROR_KINDS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from casync import _constants

    return _constants.ERROR_KINDS
