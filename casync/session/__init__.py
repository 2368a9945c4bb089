"""One rank's membership in a world: its session with the core, and the default session."""

from casync.session.session import Completion, CompletionGroup, Session, Together

__all__ = ["Completion", "CompletionGroup", "Session", "Together"]
