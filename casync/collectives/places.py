"""Which call of a step a call without a name is: what codecs keep is kept by that. Pure.

`torch.distributed` hands over tensors and no names. The calls of a training loop repeat, though: the same tensors, in
the same order, in every step. So a call is known by its place: the k-th of its kind, dtype and shape in the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Change", "Places", "shown"]

Call = Hashable
"""All by which calls are told apart, their place aside."""


@dataclass(frozen=True)
class Change:
    """A step had other calls than the one before it. `is_second`: it was the second, before which frameworks that
    gather tensors in buckets lay them out anew.
    """

    is_second: bool
    before: tuple[Call, ...]
    after: tuple[Call, ...]


class Places:
    """The places of one group's calls. A step ends when `end` says so; if nothing ever does, where the calls come
    again.

    No call has a place before it is known what a step is: so nothing is kept of calls that the second step has not.
    """

    def __init__(self) -> None:
        self.generation = 0
        """How often the calls have changed: what was kept under an earlier one belongs to no call any more."""
        self._known: tuple[Call, ...] = ()  # the calls of a step
        self._now: list[Call] = []  # of this step, so far
        self._counts: Counter[Call] = Counter()
        self._steps = 0
        self._is_told = False  # of the ends of steps

    def place(self, call: Call) -> int | None:
        """Of the next call: which one like it it is in this step, from 0; None: steps are not known yet."""
        if self._known and not self._is_told and len(self._now) == len(self._known):
            self._begin()
        self._now.append(call)
        if not self._known:
            self._look_for_steps()
            return None
        number = self._counts[call]
        self._counts[call] += 1
        return number

    def end(self) -> Change | None:
        """The step is over. What has changed, if that is so."""
        self._is_told = True
        if not self._now:
            return None
        now, before = tuple(self._now), self._known
        self._begin()
        self._known = now
        self._steps += 1
        if not before or now == before:
            return None
        if self._steps > 2:
            self.generation += 1
        return Change(self._steps == 2, before, now)

    def _begin(self) -> None:
        self._now.clear()
        self._counts.clear()

    def _look_for_steps(self) -> None:
        """Nobody has said yet where one ends: two equal halves are two steps."""
        half, odd = divmod(len(self._now), 2)
        if not self._is_told and not odd and self._now[:half] == self._now[half:]:
            self._known = tuple(self._now[:half])
            self._begin()


def shown(calls: Sequence[Call], limit: int = 8) -> str:
    """A sequence of calls, for a message."""
    text = ", ".join(map(str, calls[:limit]))
    return f"{text}, and {len(calls) - limit} more" if len(calls) > limit else text
