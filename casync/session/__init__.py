"""One rank's membership in a world: its session with the core, and what is by default."""

from casync.session.session import Completion, CompletionGroup, Session

__all__ = ["Completion", "CompletionGroup", "Session", "Together"]
