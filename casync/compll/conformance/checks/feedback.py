"""Checks that what encoding loses is kept exactly, by the runtime's residual or the codec's own `pending` arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from casync.compll.conformance.cases import SHAPES, Case, cases, some_units
from casync.compll.conformance.passage import Passage, lone_rank
from casync.compll.conformance.rank import Rank
from casync.compll.conformance.trial import Broken, Trial
from casync.errors import CasyncError

__all__ = ["feedback"]

_ULPS = 4  # x, D / mid and their difference are rounded each


def feedback(trial: Trial) -> str:
    kind = trial.codec.info.feedback
    every = cases(trial.codec, [*some_units(trial.codec), *SHAPES], ("normal", "heavy-tailed", "constant"))
    return {"none": _refused, "wrapper": _wrapped, "own": _own}[kind](trial, every)


def _refused(trial: Trial, every: Iterable[Case]) -> str:
    for case in trial.each(every):
        residual = np.ones(case.size, np.float32)
        rank = Rank(trial.codec, case.shape)
        try:
            rank.encode(case.elements(), (0, case.size), case.step, residual=residual)
        except CasyncError:
            continue
        raise Broken("a residual is taken, though the codec says that it has no feedback")
    return "none, and a residual is refused"


def _wrapped(trial: Trial, every: Iterable[Case]) -> str:
    """x = gradient + decay * residual; residual = x - D(payload) / mid."""
    if not trial.subject.contractive:
        raise Broken("a residual is kept around a codec that does not promise to be contractive")
    mids = (1.0, 0.5, 1 / 3) if len(trial.codec.info.rounds) == 1 else (1.0,)
    for case in trial.each(every):
        for mid in mids:
            _check_residual(trial, case, mid)
    return f"residual = x - D(payload) / mid, {trial.count} times for mid = {', '.join(f'{mid:.3g}' for mid in mids)}"


def _check_residual(trial: Trial, case: Case, mid: float) -> None:
    rank = lone_rank(trial.codec, case)
    assert rank.residual is not None
    rank.residual[:] = case.values(1)
    before = rank.residual.copy()
    x = case.elements() + np.float32(trial.codec.info.feedback_decay) * before
    decoded = _decoded(trial, rank, case.elements(), case.step, mid) / np.float32(mid)
    want = x - decoded
    now = rank.residual
    off = np.abs(now.astype(np.float64) - want) / np.spacing(np.abs(x) + np.abs(decoded))
    if (i := _too_far(off)) is not None:
        raise Broken(
            f"element {i}: x = {x[i]:.9g}, D(payload) / mid = {decoded[i]:.9g}, so the residual is {want[i]:.9g}, not "
            f"{now[i]:.9g} (mid = {mid:.3g})"
        )


def _own(trial: Trial, every: Iterable[Case]) -> str:
    kept = ""
    for case in trial.each(every):
        rank = lone_rank(trial.codec, case)
        names = [array.name for array in rank.declared if array.pending]
        if not names:
            return "the codec's own, with no pending array: what an aborted operation took is lost"
        kept = ", ".join(names)
        for step in range(3):
            before, x = rank.pending(), case.values(step).astype(np.float64)
            decoded = _decoded(trial, rank, case.elements(step), case.step + step)
            after = rank.pending()
            assert before is not None and after is not None  # there are pending arrays
            size = np.abs(x) + np.abs(before) + np.abs(decoded)
            off = np.abs(before + x - decoded - after) / np.spacing(size.astype(np.float32))
            if (i := _too_far(off)) is not None:
                raise Broken(
                    f"element {i} in step {step}: {before[i]:.9g} was pending, x = {x[i]:.9g}, D(payload) = "
                    f"{decoded[i]:.9g}, {after[i]:.9g} is pending"
                )
    return f"the codec's own: {kept} + D(payload) is what was pending + x, {trial.count} times over 3 steps"


def _too_far(off: np.ndarray) -> int | None:
    """Return the first place where float32's rounding does not explain the difference; NaN counts."""
    wrong = np.flatnonzero(~(off <= _ULPS))
    return int(wrong[0]) if len(wrong) else None


def _decoded(trial: Trial, rank: Rank, gradient: np.ndarray, step: int, mid: float = 1.0) -> np.ndarray:
    """Return what one rank's payload decodes to. The residual changes in the last round only."""
    passage = Passage(rank, gradient, step, mid=mid)
    before = None if rank.residual is None else rank.residual.copy()
    for round, segment in enumerate(passage.encodings()):
        if before is not None and rank.residual is not None:
            trial.equal(f"the residual when round {round} begins", rank.residual, before)
        rank.codec.run([segment])
    return passage.decode()
