"""Payloads that the codec did not write: refused or decoded to something, without a crash and within its memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from casync.compll.conformance.cases import SHAPES, Case, cases, some_units
from casync.compll.conformance.passage import Passage, lone_rank
from casync.compll.conformance.trial import Broken, Trial
from casync.errors import CorruptPayloadError

__all__ = ["wire"]

_TRIALS = 40


def wire(trial: Trial) -> str:
    refused = decoded = 0
    shapes = [*some_units(trial.codec), *SHAPES, (1, 1), (33, 1)]
    for case in trial.each(cases(trial.codec, shapes)):
        passage = Passage(lone_rank(trial.codec, case), case.elements(), case.step)
        payload = passage.encode()[-1]
        for what, foreign in _foreign(payload, case):
            trial.at(f"{case}: {what}")
            if _refuses(passage, foreign):
                refused += 1
            elif trial.codec.info.fixed_size and len(foreign) != len(payload):
                raise Broken(f"{len(foreign)} bytes are decoded where the payload has {len(payload)}")
            else:
                decoded += 1
    return f"{refused} foreign payloads refused, {decoded} decoded to something, none with a crash"


def _refuses(passage: Passage, foreign: np.ndarray) -> bool:
    try:
        passage.decode(foreign)
    except CorruptPayloadError:
        return True
    return False


def _foreign(payload: np.ndarray, case: Case) -> Iterator[tuple[str, np.ndarray]]:
    size = len(payload)
    for kept in sorted({0, 1, size // 2, size - 4, size - 1} & set(range(size))):
        yield f"the first {kept} of {size} bytes", payload[:kept]
    for more in (1, 4, size):
        yield f"{more} bytes more than {size}", np.concatenate([payload, np.zeros(more, np.uint8)])
    random = np.random.default_rng([case.seed, *case.shape])
    for number in range(_TRIALS):
        yield f"random bytes number {number}", random.integers(0, 256, size, np.uint8)
        flipped = payload.copy()
        places = random.integers(0, size, 3)
        flipped[places] = random.integers(0, 256, len(places), np.uint8)
        yield f"three bytes changed, number {number}", flipped
