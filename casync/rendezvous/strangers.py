"""Connections that have proved nothing yet: how many there may be, how much they may say, and for how long. Pure.

Whoever listens for the ranks of a job is reached by others too: by a port scan, a health check, or somebody who means
harm. A connection takes a place until it has proved that it knows the job's secret. There are two places for each rank.
If all are taken, the oldest one makes room for a new one, so that nobody keeps ranks out by holding on. A rank that
lost its place in this way calls again.

    strangers = Strangers(ranks=4)
    dropped = strangers.enter(connection, now)    # None, or the connection that has to go
    strangers.leave(connection)                   # it has proved who it is, or has hung up
    strangers.overdue(now)                        # those whose time is over
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["SAY_BYTES", "SECONDS", "Strangers"]

SAY_BYTES = 4096
"""The most bytes that a connection may say before it has proved anything."""
SECONDS = 10.0
"""The longest time that it may take for that."""
_PLACES_PER_RANK = 2

_T = TypeVar("_T")


class Strangers(Generic[_T]):
    """The connections that have proved nothing yet, see above. `_T` is whatever tells one connection from another."""

    def __init__(self, ranks: int) -> None:
        self._places = _PLACES_PER_RANK * ranks
        self._entered: dict[_T, float] = {}  # in the order in which they came
        self._credible: set[_T] = set()

    def __contains__(self, who: object) -> bool:
        return who in self._entered

    def enter(self, who: _T, now: float) -> _T | None:
        """`who` takes a place. Returns the one that it takes it from, which has to be hung up on."""
        dropped = None
        if len(self._entered) >= self._places:
            dropped = next((one for one in self._entered if one not in self._credible), next(iter(self._entered)))
            self.leave(dropped)
        self._entered[who] = now
        return dropped

    def believe(self, who: _T) -> None:
        """`who` has begun as only those do who know the secret, or have listened in: it goes after all others."""
        if who in self._entered:
            self._credible.add(who)

    def leave(self, who: _T) -> None:
        """Free the place of `who`."""
        self._entered.pop(who, None)
        self._credible.discard(who)

    def overdue(self, now: float) -> list[_T]:
        """Return the strangers that have been here too long. They keep their places until they `leave`."""
        return [who for who, since in self._entered.items() if now >= since + SECONDS]

    def everyone(self) -> list[_T]:
        """Return all that have a place."""
        return list(self._entered)

    def next_deadline(self) -> float | None:
        """Return when the time of the next one is over; None if there is nobody."""
        return min((since + SECONDS for since in self._entered.values()), default=None)
