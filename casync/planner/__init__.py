"""The planner's side for people: what `casync plan` prints. The decisions are the core's (`casync/planner.hpp`)."""

from __future__ import annotations

__all__: list[str] = []
