"""Which ranks wait in init(), and for whom. Pure: the clock is passed in.

A rank that calls init() waits until its peers have called it too, and inside MPI_Init it can neither raise nor say who
is missing. Each rank reports that it enters such a wait and for whom, and that it is through:

    arrivals = Arrivals()
    arrivals.entered(0, "MPI", peers=[0, 1], warning_s=60.0, timeout_s=600.0, now=1.0)
    arrivals.overdue(61.0)     # [Overdue(missing=(1,), waiting=(0,), seconds=60.0, timeout_s=600.0)]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

__all__ = ["Arrivals", "Overdue"]


@dataclass(frozen=True)
class Overdue:
    """`waiting` have waited `seconds` for `missing`, and may do so for `timeout_s`."""

    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float
    timeout_s: float

    @property
    def final(self) -> bool:
        """Whether they have waited as long as they may."""
        return self.seconds >= self.timeout_s


@dataclass
class _Meeting:
    peers: frozenset[int]
    since: float
    warning_s: float
    timeout_s: float
    came: set[int] = field(default_factory=set)
    warned: bool = False

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(sorted(self.peers - self.came))

    @property
    def next_limit(self) -> float:
        return self.timeout_s if self.warned else min(self.timeout_s, self.warning_s)


class Arrivals:
    """The waits of one job, each by a key that its ranks share and that is never used again."""

    def __init__(self) -> None:
        self._meetings: dict[str, _Meeting] = {}
        self._over: set[str] = set()

    def entered(
        self, rank: int, key: str, peers: Collection[int], warning_s: float, timeout_s: float, now: float
    ) -> None:
        """`rank` waits for all of `peers`, itself among them. The first one's limits hold."""
        if key not in self._over:
            self._meetings.setdefault(key, _Meeting(frozenset(peers), now, warning_s, timeout_s)).came.add(rank)

    def met(self, key: str) -> None:
        """A rank is through: all have come, though the word of some may still be on its way."""
        self._meetings.pop(key, None)
        self._over.add(key)

    def overdue(self, now: float) -> list[Overdue]:
        """Return the meetings of which something is due now: a warning once, and the end."""
        due = []
        for meeting in self._meetings.values():
            if meeting.missing and now - meeting.since >= meeting.next_limit:
                meeting.warned = True
                waiting = tuple(sorted(meeting.came))
                due.append(Overdue(meeting.missing, waiting, now - meeting.since, meeting.timeout_s))
        return due

    def next_deadline(self) -> float | None:
        """Return when `overdue` has something to say next, if nobody comes."""
        waits = (meeting for meeting in self._meetings.values() if meeting.missing)
        return min((meeting.since + meeting.next_limit for meeting in waits), default=None)

    def in_vain(self, gone: Collection[int]) -> tuple[int, Sequence[int]] | None:
        """Return a rank among `gone` that others wait for, and those others."""
        for meeting in self._meetings.values():
            for rank in meeting.missing:
                if rank in gone:
                    return rank, sorted(meeting.came)
        return None
