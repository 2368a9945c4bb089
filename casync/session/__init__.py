"""One rank's membership in a world: its session with the core, and the default session."""

from casync.session.completion_group import CompletionGroup, Together
from casync.session.session import Completion, Session

__all__ = ["Completion", "CompletionGroup", "Session", "Together"]
