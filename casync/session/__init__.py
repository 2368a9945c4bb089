"""One rank's membership in a world: its session with the core, and what is by default."""

from casync.session.session import Completion, Session, Together

__all__ = ["Completion", "Session", "Together"]
