"""A NaN or an infinity is seen by everybody, and harms nothing that is kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from casync.compll.conformance.cases import Case, cases, some_units, units
from casync.compll.conformance.passage import Passage
from casync.compll.conformance.rank import Rank, delivered
from casync.compll.conformance.trial import Broken, Trial
from casync.compll.conformance.world import World, routes

__all__ = ["nonfinite"]

_BAD = (np.nan, np.inf, -np.inf)


def nonfinite(trial: Trial) -> str:
    shapes = [*some_units(trial.codec), (1, 1), (7, 1)]
    for case in trial.each(_Poisoned.cases(trial, shapes)):
        _one_rank(trial, case)
        if case.value is _BAD[0]:
            _several(trial, case)
    return f"NaN, inf and -inf, {trial.count} places: the unit decodes to NaN, other units, residual and state stay"


class _Poisoned:
    """A case with one element that is not finite, in the unit [begin, end)."""

    def __init__(self, case: Case, unit: tuple[int, int], place: int, value: float) -> None:
        self.case, self.unit, self.place, self.value = case, unit, place, value

    @classmethod
    def cases(cls, trial: Trial, shapes: list[tuple[int, int]]) -> Iterator[_Poisoned]:
        for case in cases(trial.codec, shapes):
            every = list(units(trial.codec, case.shape))
            for begin, end in {every[0], every[len(every) // 2], every[-1]}:
                for value in _BAD:
                    for place in sorted({begin, (begin + end) // 2, end - 1}):
                        yield cls(case, (begin, end), place, value)

    def elements(self, other: int = 0) -> np.ndarray:
        elements = self.case.elements(other)
        elements[self.place] = self.value
        return elements

    def __str__(self) -> str:
        return f"{self.case}, element {self.place} = {self.value}"


def _one_rank(trial: Trial, poisoned: _Poisoned) -> None:
    case, (begin, end) = poisoned.case, poisoned.unit
    world = World(trial.codec, case.shape, first=case.step)
    world.step([case.elements(1)])
    rank = world.ranks[0]
    before = rank.kept()
    out, reported = _through(rank, poisoned.elements(), world.number)
    if np.isfinite(out[begin:end]).any() and trial.codec.cut(case.shape, end - 1) == begin:
        i = begin + int(np.argmax(np.isfinite(out[begin:end])))
        raise Broken(f"the unit [{begin}, {end}) is not finite, but element {i} decodes to {out[i]:.9g}")
    if np.isfinite(out[poisoned.place]):
        raise Broken(f"it decodes to {out[poisoned.place]:.9g}")
    rest = np.concatenate([out[:begin], out[end:]])
    if not np.isfinite(rest).all():
        raise Broken(f"elements outside of its unit [{begin}, {end}) decode to what is not finite")
    if not reported:
        raise Broken("no segment says `nonfinite`")
    _unharmed(trial, rank, before, poisoned)


def _through(rank: Rank, gradient: np.ndarray, step: int) -> tuple[np.ndarray, bool]:
    """Encoded and decoded on a rank alone; whether both say that something is not finite."""
    passage, reported = Passage(rank, gradient, step), False
    for segment in passage.encodings():
        rank.codec.run([segment])
        reported = segment.nonfinite
    result = passage.decoding()
    rank.codec.run([result])
    return delivered(result), reported and result.nonfinite


def _unharmed(trial: Trial, rank: Rank, before: dict[str, np.ndarray], poisoned: _Poisoned) -> None:
    begin, end = poisoned.unit
    for name, values in rank.kept().items():
        per_element = len(values) == rank.size
        what = f"{name}, after a step that was not finite"
        part = slice(begin, end) if per_element else slice(None)
        trial.equal(what, values[part], before[name][part])


def _several(trial: Trial, poisoned: _Poisoned) -> None:
    """One of three ranks has it: nobody delivers a number there, and the next step is sound."""
    case = poisoned.case
    for route in routes(trial.codec):
        world = World(trial.codec, case.shape, 3, case.step, route)
        world.step([case.elements(rank) for rank in range(3)])
        before = world.ranks[1].kept()
        shared = [[v.copy() for a, v in zip(r.declared, r.state, strict=True) if a.shared] for r in world.ranks]
        outputs = world.step([case.elements(3), poisoned.elements(4), case.elements(5)])
        for rank, out in zip(world.ranks, outputs, strict=True):
            if np.isfinite(out[poisoned.place]):
                raise Broken(f"{route}: rank 1 of 3 has it, rank {rank.rank} delivers {out[poisoned.place]:.9g} there")
            now = [v for a, v in zip(rank.declared, rank.state, strict=True) if a.shared]
            for old, new in zip(shared[rank.rank], now, strict=True):
                if trial.codec.info.whole:
                    trial.equal(f"{route}: shared state of rank {rank.rank} after a step that was not finite", new, old)
        _unharmed(trial, world.ranks[1], before, poisoned)
        for out in world.step([case.elements(6 + rank) for rank in range(3)]):
            if not np.isfinite(out).all():
                raise Broken(f"{route}: the step after it is not finite either")
