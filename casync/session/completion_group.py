"""One completion that several operations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from casync.errors import CasyncError
from casync.session.handles import Handles

if TYPE_CHECKING:
    from casync import _core

__all__ = ["CompletionGroup", "Together"]


class CompletionGroup:
    """Operations with one completion, which costs less than one for each: made by `Session.together`.

        with session.together(over) as gradients:
            for ...:
                session.submit(..., completion=gradients)

    `over(error)` is called once, when all are over and the block has ended: on the thread that calls completions, in
    `wait`, or right at the end of the block if none is left. `error` is the first that ended one, or the first that
    ended the session; else None.
    """

    def __init__(
        self, core_session: _core.Session, handles: Handles, completion: Callable[[CasyncError | None], object]
    ) -> None:
        from casync import _core

        self.keeps: list[Any] = []
        number = handles.keep(self.keeps)

        def ended(error: CasyncError | None) -> None:
            handles.end(number, error)
            completion(error)

        self.core = _core.CompletionGroup(core_session, ended)

    def __enter__(self) -> CompletionGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.core.close()

    def wait(self) -> None:
        """After the block: make progress until all are over, for a thread that has nothing else to do. It calls the
        completion itself, unless the thread that calls completions has begun to.
        """
        self.core.wait()


Together = CompletionGroup
"""The name of `CompletionGroup` before 0.2; for one release."""
