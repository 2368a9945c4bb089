"""1 to 5 ranks that aggregate as the runtime does: equal bits, nothing lost, nothing that a checkpoint misses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from casync.compll.conformance.cases import Case, cases, some_units
from casync.compll.conformance.elements import FLOAT32, distance, to_values
from casync.compll.conformance.trial import Broken, Trial, skip
from casync.compll.conformance.world import World, routes

__all__ = ["checkpoint", "mass", "replicas"]

_RANKS = range(1, 6)
_STEPS = 4
_MOMENTUM = 0.9
_HALF = 1
_ROUNDING = 4  # steps of what is added up, at the size of all of it
_COARSER = {"float32": 1, "int8": 1, "float16": 2**13, "bfloat16": 2**16}
"""A rounding step of what payloads are made of that merge, by float32's; sums of int8 are exact."""


def _momentum(trial: Trial) -> float:
    return _MOMENTUM if trial.codec.info.momentum else 0.0


def _gradients(world: World, case: Case, step: int) -> list[np.ndarray]:
    """Different ones on every rank and in every step, with a mean that is not 0."""
    return [case.elements(1 + step * world.size + rank) for rank in range(world.size)]


def _worlds(trial: Trial, case: Case, counts: tuple[int, ...], momentum: float = 0.0) -> Iterator[World]:
    """Jobs of all sizes over all routes, in so many partitions."""
    counts = (1,) if trial.codec.info.whole else counts
    for size, route, count in itertools.product(_RANKS, routes(trial.codec), counts):
        trial.at(f"{case}; {size} ranks, {route}, {count} partitions")
        yield World(trial.codec, case.shape, size, case.step, route, count, case.dtype, momentum=momentum)


def replicas(trial: Trial) -> str:
    worst = 0.0
    for case in trial.each(cases(trial.codec, some_units(trial.codec), dtypes=(FLOAT32, _HALF))):
        for world in _worlds(trial, case, (1, 3), _momentum(trial)):
            for step in range(3):
                gradients = _gradients(world, case, step)
                outputs = world.step(gradients)
                _same_everywhere(trial, world, outputs, step)
                if step == 0:
                    mean: np.ndarray = np.stack([to_values(one, case.dtype) for one in gradients]).mean(0, np.float64)
                    worst = max(worst, distance(to_values(outputs[0], case.dtype), mean) / distance(mean))
    by = " and ".join(routes(trial.codec))
    return f"equal bits on 1 to {_RANKS[-1]} ranks by {by}; in one step at most {worst:.3g} |mean| from the mean"


def _same_everywhere(trial: Trial, world: World, outputs: list[np.ndarray], step: int) -> None:
    first = world.ranks[0]
    for rank, out in zip(world.ranks, outputs, strict=True):
        trial.equal(f"step {step}: the result on rank {rank.rank}, beside rank 0", out, outputs[0])
        for array, values, zero in zip(rank.declared, rank.state, first.state, strict=True):
            if array.shared:
                trial.equal(f"step {step}: state `{array.name}` on rank {rank.rank}, beside rank 0", values, zero)


def mass(trial: Trial) -> str:
    """Check that what was not delivered is still there: N * sum of outputs + what the ranks keep = sum of inputs, but
    for what a decay took of what they kept.
    """
    if World(trial.codec, (64, 64)).ranks[0].pending() is None:
        skip("keeps nothing of what it does not send")
    worst = 0.0
    for case in trial.each(cases(trial.codec, some_units(trial.codec), ("normal", "sparse", "heavy-tailed"))):
        for world in _worlds(trial, case, (3,)):
            worst = max(worst, _conserved(world, case))
    element = trial.codec.info.merged_element.replace("int8", "float32")
    return f"N * outputs + what is kept = inputs over {_STEPS} steps, within {worst:.2g} of {element}'s rounding steps"


def _conserved(world: World, case: Case) -> float:
    """The largest difference, in units of the rounding of all that was added up: by float32, or by what is merged."""
    given, got = np.zeros(case.size), np.zeros(case.size)
    magnitude = np.zeros(case.size)
    fading, left = 1 - float(np.float32(world.info.feedback_decay)), np.zeros(case.size)
    for step in range(_STEPS):
        gradients = _gradients(world, case, step)
        given -= fading * left
        outputs = world.step(gradients)
        kept = [pending for rank in world.ranks if (pending := rank.pending()) is not None]
        given += np.sum(gradients, 0, np.float64)
        got += world.size * outputs[0].astype(np.float64)
        left = np.sum(kept, 0)
        magnitude += np.abs(gradients).sum(0) + np.abs(kept).sum(0) + world.size * np.abs(outputs[0])
    info = world.codec.info
    if info.merges_payloads:  # factors are averaged, so an element rounds with all that its products are made of
        magnitude[:] = magnitude.max(initial=0.0)
    rounding = np.spacing(magnitude.astype(np.float32)) * _COARSER[info.merged_element]
    steps = np.abs(got + left - given) / (rounding + 1e-300)
    if not steps.max() <= _ROUNDING:
        i = int(np.argmax(~(steps <= _ROUNDING)))
        raise Broken(
            f"element {i} after {_STEPS} steps: inputs add up to {given[i]:.9g}, N times the outputs to {got[i]:.9g}, "
            f"what the ranks keep to {left[i]:.9g}"
        )
    return float(steps.max())


def checkpoint(trial: Trial) -> str:
    """Saved after some steps and restored into new ranks: the same bytes as without an interruption."""
    seen = "nothing is kept"
    for case in trial.each(cases(trial.codec, some_units(trial.codec))):
        first = World(trial.codec, case.shape, 3, case.step, routes(trial.codec)[-1], momentum=_momentum(trial))
        for step in range(_STEPS):
            first.step(_gradients(first, case, step))
        saved = [rank.kept() for rank in first.ranks]
        if kept := saved[0]:
            each = sum(values.nbytes for values in kept.values()) / case.size
            seen = f"restored ranks go on with equal bytes; {each:.3g} bytes an element: {', '.join(kept)}"
        again = World(trial.subject.make(), case.shape, 3, first.number, first.route, momentum=_momentum(trial))
        again.agreed = first.agreed
        for rank, arrays in zip(again.ranks, saved, strict=True):
            rank.restore(arrays)
        for step in range(_STEPS, 2 * _STEPS):
            wanted, found = (world.step(_gradients(world, case, step))[0] for world in (first, again))
            where = f"step {step}, restored after step {_STEPS - 1}"
            trial.equal(f"payloads of {where}", np.concatenate(again.sent), np.concatenate(first.sent))
            trial.equal(f"the result of {where}", found, wanted)
            _check_declared(first)
    return seen


def _check_declared(world: World) -> None:
    rank = world.ranks[0]
    names = [array.name for array in rank.declared]
    if len({*names}) < len(names):
        raise Broken(f"state arrays need names of their own: {', '.join(names)}")
    for array in rank.declared:
        if array.per_element and array.elements != rank.size:
            raise Broken(f"state `{array.name}` is per element, but has {array.elements} of {rank.size}")
