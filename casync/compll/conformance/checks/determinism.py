"""The bytes depend on the gradient, its name, the step, the rank and nothing else."""

from __future__ import annotations

import numpy as np

from casync.compll.conformance.cases import SHAPES, Case, cases, partitions, some_units
from casync.compll.conformance.contract import OWNER
from casync.compll.conformance.passage import Passage, lone_rank
from casync.compll.conformance.rank import NAME, delivered
from casync.compll.conformance.trial import Broken, Trial, skip
from casync.compll.conformance.world import World

__all__ = ["batches", "cut", "draws", "instruction_sets"]

_MANY = 64


def draws(trial: Trial) -> str:
    """Equal keys, equal bytes; where the codec draws random numbers, other ones for other keys."""
    found: dict[str, bool] = {}
    shapes = [shape for shape in some_units(trial.codec) if shape[0] * shape[1] > 1000]
    for case in trial.each(cases(trial.codec, shapes)):
        base = _bytes(trial, case)
        for what, again in (("once more", trial.codec), ("by another instance", trial.subject.make())):
            world = World(again, case.shape, first=case.step)
            world.step([case.elements()])
            trial.equal(f"the payload, encoded {what}", np.concatenate(world.sent), base)
        others = {
            "step": _bytes(trial, case, step=1),
            "rank": _bytes(trial, case, rank=1),
            "role": _bytes(trial, case, role=OWNER),
            "name": _bytes(trial, case, name=NAME + 1),
        }
        for what, payload in others.items():
            differs = len(payload) != len(base) or bool((payload != base).any())
            if trial.subject.draws and not differs:
                raise Broken(f"random numbers are drawn, but another {what} gives the same bytes")
            found[what] = found.get(what, False) or differs
    own = [what for what, differs in found.items() if differs]
    return f"equal bytes for equal keys; {'other bytes for another ' + ', '.join(own) if own else 'no random numbers'}"


def _bytes(trial: Trial, case: Case, step: int = 0, rank: int = 0, name: int = NAME, **rest: int) -> np.ndarray:
    """Return what a rank alone encodes in all rounds."""
    one = lone_rank(trial.codec, case, name=name)
    one.rank = rank
    return np.concatenate(Passage(one, case.elements(), case.step + step, **rest).encode())


def cut(trial: Trial) -> str:
    """Partitions change nothing."""
    if trial.codec.info.whole:
        skip("encodes a gradient at once: it is never cut")
    counts = set()
    for case in trial.each(cases(trial.codec, some_units(trial.codec), ("normal", "sparse"))):
        whole = _in_parts(trial, case, 1)
        for count in (2, 3, _MANY):
            parts = _in_parts(trial, case, count)
            counts.add(len(partitions(trial.codec, case.shape, count)))
            for what, want in whole.items():
                trial.equal(f"{what}, in {count} partitions", parts[what], want)
    return f"bytes, result, residual and state in up to {max(counts, default=1)} partitions as in one"


def _in_parts(trial: Trial, case: Case, count: int) -> dict[str, np.ndarray]:
    world = World(trial.codec, case.shape, first=case.step, cut=count)
    for _ in range(2):  # so that residual and state are not what they were at the start
        [out] = world.step([case.elements()])
    rounds = len(trial.codec.info.rounds)
    found = {f"bytes of round {r}": np.concatenate(world.sent[r::rounds]) for r in range(rounds)}
    return found | {"the result": out} | world.ranks[0].kept()


def batches(trial: Trial) -> str:
    """Several gradients in one call give what each gives alone."""
    tried = list(cases(trial.codec, [*some_units(trial.codec), *SHAPES, (3, 1)]))
    shapes = ", ".join(f"{case.shape[0]} x {case.shape[1]}" for case in tried)
    for _ in trial.each([f"a batch of gradients of {shapes}"] if tried else []):
        alone, together = [_passage(trial, case) for case in tried], [_passage(trial, case) for case in tried]
        for segments in zip(*(passage.encodings() for passage in together), strict=True):
            trial.codec.run(segments)
        results = [passage.decoding() for passage in together]
        trial.codec.run(results)
        for case, one, other, result in zip(tried, alone, together, results, strict=True):
            for payload, want in zip(other.payloads, one.encode(), strict=True):
                trial.equal(f"the payload of the {case}", payload, want)
            trial.equal(f"the result of the {case}", delivered(result), one.decode())
    return f"{len(tried)} gradients in one call as each alone"


def _passage(trial: Trial, case: Case) -> Passage:
    return Passage(lone_rank(trial.codec, case), case.elements(), case.step)


def instruction_sets(trial: Trial) -> str:
    from casync import _core

    names, best = _core.isas(), _core.isa()
    kinds = ("normal", "heavy-tailed", "tiny")
    differing = 0
    try:
        for case in trial.each(cases(trial.codec, [*some_units(trial.codec), *SHAPES], kinds)):
            _core.force_isa(names[0])
            base = _passage(trial, case)
            base.encode()
            want = _results(base)
            for name in names[1:]:
                _core.force_isa(name)
                differing += not all(map(np.array_equal, _passage(trial, case).encode(), base.payloads))
                for (what, values), before in zip(_results(base).items(), want.values(), strict=True):
                    trial.equal(f"{what}, with {name} beside {names[0]}", values, before)
    finally:
        _core.force_isa(best)
    of = trial.count * (len(names) - 1)
    encoded = f"{differing} of {of} payloads differ" if differing else "encode gives equal bytes"
    return f"{', '.join(names)}: decode and merge give equal bits, {encoded}"


def _results(passage: Passage) -> dict[str, np.ndarray]:
    payload = passage.payloads[-1]
    mean = passage.decode(payload, payload, payload, mid=1.0 if passage.rank.codec.info.merges_payloads else 1 / 3)
    return {"the decoded gradient": passage.decode(), "the mean of three payloads": mean}
