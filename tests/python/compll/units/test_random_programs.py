"""Programs made up at random (tests/fuzz/compll_programs.py), compiled at two instruction sets and held to the
interpreter's bits.

`CASYNC_TEST_PROGRAMS=500 pytest tests/python/compll/units/test_random_programs.py` looks at more of them, and each time
at others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings

from casync.errors import NotAvailableError
from support.files import load

compll_programs = load("tests/fuzz/compll_programs.py")

F = np.float32
FIXED = "CASYNC_TEST_PROGRAMS" not in os.environ  # what CI says depends on the change alone
PROGRAMS = int(os.environ.get("CASYNC_TEST_PROGRAMS", "10"))
SIZES = (1, 17, 1025, 2100)


class NotFinite(Exception):
    """What is not finite on its way to others is test_poison.py's."""


def finite(values: Any) -> Any:
    if not np.isfinite(np.asarray(values, np.float64)).all():
        raise NotFinite
    return values


@pytest.fixture(scope="module")
def finite_machine(unit_machine: Any) -> Any:
    class Finite(unit_machine):
        def tree(self, values: Sequence[Any], udf: Any, *start: Any) -> Any:
            total = super().tree(values, udf, *start)
            return finite(total) if udf.name == "add" else total  # an empty list's largest is infinite

        def pack(self, values: Sequence[Any]) -> bytes:
            return super().pack([finite(value) for value in values])

        def state_arrays(self) -> list[np.ndarray]:
            return [finite(state) for state in super().state_arrays()]

        def decode(self, payload: bytes) -> np.ndarray:
            return finite(super().decode(payload))

    return Finite


def inputs(n: int) -> list[np.ndarray]:
    random = np.random.default_rng(n)
    normal = random.standard_normal(n).astype(F)
    odd = np.array([0.0, -0.0, 1e-42, -1e-42, 1e-30, 3.0, -3.0, 0.5], F)
    return [normal, np.resize(odd, n), np.where(random.random(n) < 0.05, normal, F(0)), np.zeros(n, F)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=PROGRAMS, derandomize=FIXED, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=compll_programs.programs())
def test_bytes_are_those_of_the_text(
    text: str, workshop: Any, finite_machine: Any, native: Any, same_bits: Any
) -> None:
    name = workshop.add(text)
    try:
        libraries = workshop.built(name)
    except NotAvailableError:
        reject()
    for place, n in enumerate(SIZES):
        values = {"width": (7, 1, 100, 5000)[place], "level": F((0.75, 0, 2, 100)[place])}
        values = {key: value for key, value in values.items() if f"params.{key}" in text}
        for x, lost in ((inputs(n)[0], F(0.125)), (inputs(n)[1 + place % 3], None)):
            machine = finite_machine(name, (1, n), **values)
            wrapped = lost is not None and machine.codec.properties.feedback == "wrapper"
            ranks = {isa: native(library, name, (1, n), values) for isa, library in libraries.items()}
            with contextlib.suppress(NotFinite):
                same_bits(machine, ranks, x, f"{n} values", x * lost if wrapped else None)
