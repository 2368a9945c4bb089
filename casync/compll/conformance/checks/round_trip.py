"""decode(encode(x)): finite, complete, within the bound, and as the file promises. What merging makes of payloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from casync.compll.conformance.cases import KINDS, SHAPES, Case, cases, first_step, units, vectors
from casync.compll.conformance.contract import Source
from casync.compll.conformance.elements import DTYPES, FLOAT32, distance, to_elements, to_values
from casync.compll.conformance.rank import Rank
from casync.compll.conformance.trial import Broken, Trial, skip
from casync.compll.conformance.world import World

__all__ = ["contraction", "error", "merging", "round_trip", "size"]

_ORDINARY = [kind for kind in KINDS if kind != "huge"]  # whose sums, and sums of squares, stay finite
_QUANTUM = 2.0**-149  # of subnormal numbers: what rounding may cost however small the value
_DRAWS = 32


def alone(trial: Trial, case: Case, dtype: int | None = None) -> tuple[list[np.ndarray], np.ndarray]:
    """Payloads of all rounds and what they decode to, on one rank."""
    world = World(trial.codec, case.shape, first=case.step, dtype=case.dtype if dtype is None else dtype)
    values = to_values(case.elements(), case.dtype)
    [out] = world.step([to_elements(values, world.ranks[0].dtype)])
    return world.sent, out


def round_trip(trial: Trial) -> str:
    shapes = [*vectors(trial.codec), *SHAPES]
    every = [*cases(trial.codec, shapes, _ORDINARY), *cases(trial.codec, shapes, dtypes=range(1, len(DTYPES)))]
    if not every:
        raise Broken("the codec applies to none of the gradients that are tried, in none of the steps")
    for case in trial.each(every):
        payloads, out = alone(trial, case)
        values = to_values(out, case.dtype)
        if (wrong := np.flatnonzero(~np.isfinite(values))).size:
            i = wrong[0]
            raise Broken(
                f"element {i} decodes to {values[i]:.9g}, x = {to_values(case.elements(), case.dtype)[i]:.9g} "
                f"({len(wrong)} such)"
            )
        if case.dtype != FLOAT32:
            single = alone(trial, case, FLOAT32)
            for got, want in zip(payloads, single[0], strict=True):
                trial.equal("the payload, beside that of the same values in float32", got, want)
            trial.equal("the result, beside that in float32 rounded", out, to_elements(single[1], case.dtype))
    sizes = [case.size for case in every]
    return f"{trial.count} gradients of {min(sizes)} to {max(sizes)} elements, {len(DTYPES)} element types"


def size(trial: Trial) -> str:
    info = trial.codec.info
    each = 0.0
    shapes = [*vectors(trial.codec), *SHAPES]
    for case in trial.each(cases(trial.codec, shapes, KINDS)):
        rank = Rank(trial.codec, case.shape)
        payloads, _ = alone(trial, case)
        for round, payload in enumerate(payloads):
            bound = rank.bound((0, case.size), round)
            if len(payload) > bound or (info.fixed_size and len(payload) != bound):
                limit = "fixed at" if info.fixed_size else "bounded by"
                raise Broken(f"round {round}: a payload of {len(payload)} bytes, {limit} {bound}")
        if case.size > 1000:
            each = max(each, 8 * sum(map(len, payloads)) / case.size)
    held = "always the bound" if info.fixed_size else "within the bound"
    return f"at most {each:.4g} bits an element over 1000 elements, {held}"


def contraction(trial: Trial) -> str:
    if not trial.subject.contractive:
        skip("not promised (`contractive = yes`)")
    worst, at, overflowed = 0.0, "", 0
    shapes = [*vectors(trial.codec)[1:-1], *SHAPES]
    for case in trial.each(cases(trial.codec, shapes, KINDS, seeds=(1, 2))):
        x = case.values().astype(np.float64)
        decoded = alone(trial, case)[1].astype(np.float64)
        begins, ends = np.array(list(units(trial.codec, case.shape))).T
        poisoned = np.logical_and.reduceat(np.isnan(decoded), begins) & (case.kind == "huge")
        overflowed += poisoned.sum()  # a sum over the unit is infinite: so it must be
        lost = np.sqrt(np.add.reduceat(np.square(x - decoded), begins))
        whole = np.sqrt(np.add.reduceat(np.square(x), begins))
        within = lost <= whole * (1 + 1e-6) + 2 * _QUANTUM * np.sqrt(ends - begins)
        if not (within | poisoned).all():
            i = int(np.argmin(within | poisoned))
            raise Broken(f"|x - D(x)| = {lost[i]:.6g}, |x| = {whole[i]:.6g}, in elements [{begins[i]}, {ends[i]})")
        counted = (whole > 0) & ~poisoned
        if case.kind != "subnormal" and counted.any():
            worst, at = max((worst, at), (float((lost[counted] / whole[counted]).max()), case.kind))
    seen = f"|x - D(x)| at most {worst:.4g} |x| (on {at} values)" if worst > 0 else "D(x) = x"
    return seen + (f"; {overflowed} units of huge values were not finite" if overflowed else "")


def error(trial: Trial) -> NoReturn:
    """How far a decoded gradient is from x, and the mean of many where numbers are drawn: figures, and no promise."""
    seen = []
    shape = next((shape for shape in SHAPES if first_step(trial.codec, shape) is not None), SHAPES[0])
    for case in trial.each(cases(trial.codec, [shape], ("normal", "heavy-tailed"))):
        x = case.values().astype(np.float64)
        decoded = [_decoded(trial, case, draw) for draw in range(_DRAWS if trial.subject.draws else 1)]
        once = np.mean([distance(x, one) for one in decoded]) / distance(x)
        text = f"{once:.3g} |x| on {case.kind} values"
        if len(decoded) > 1:
            bias = distance(x, np.mean(decoded, 0)) / distance(x)
            kind = "no bias seen" if bias < 2 * once / np.sqrt(_DRAWS) else "biased"
            text += f", their mean over {_DRAWS} steps {bias:.3g} |x| ({kind})"
        seen.append(text)
    skip("; ".join(seen))


def _decoded(trial: Trial, case: Case, draw: int) -> np.ndarray:
    world = World(trial.codec, case.shape, first=case.step + draw)
    return world.step([case.elements()])[0].astype(np.float64)


def merging(trial: Trial) -> str:
    info = trial.codec.info
    if info.merges_payloads:
        skip("payloads are merged by the codec's own rule; see replicas")
    for case in trial.each(_mergeable(trial)):
        gradients = [case.elements(rank) for rank in range(4)]
        world = World(trial.codec, case.shape, size=4)
        world.agree(gradients)
        *workers, rank = world.ranks
        part, raw = (0, case.size), gradients[-1]
        payloads = [Source(worker.encode(gradients[worker.rank], part, case.step)) for worker in workers]
        decoded = [rank.deliver(part, [payload], case.step) for payload in payloads]
        sources = [payloads[0], Source(raw, raw=True), *payloads[1:]]
        total = ((decoded[0] + raw) + decoded[1]) + decoded[2]
        trial.equal(
            "the sum of payload, gradient, payload, payload in this order",
            rank.deliver(part, sources, case.step),
            total,
        )
        segment = rank.segment(part, [payloads[0], Source(raw, raw=True)], case.step, raw_out=raw)
        first = decoded[0] + raw
        trial.codec.run([segment])
        trial.equal("a sum that is written over its raw source", raw, first)
        if info.rounds == ["reencode"]:
            payload, out = rank.own(part, [*payloads], case.step, mid=0.25)
            trial.equal(
                "what the owner delivers, beside its decoded payload",
                out,
                rank.deliver(part, [Source(payload)], case.step),
            )
    owners = "; the owner delivers what its payload decodes to" if info.rounds == ["reencode"] else ""
    return f"sums in the order given, {trial.count} times{owners}"


def _mergeable(trial: Trial) -> Iterator[Case]:
    return cases(trial.codec, [*vectors(trial.codec)[1:], *SHAPES])
