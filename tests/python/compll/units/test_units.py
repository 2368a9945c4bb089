"""Generated units against the interpreter of the typed tree (conftest.py), which knows nothing of passes, lanes and
memories: payload, decoded values and states have its bits at the instruction sets that it compiles for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll.library import library_files

OWN = sorted(path.stem for path in (Path(__file__).parents[3] / "compll" / "units").glob("*.cll"))
NAMES = sorted({*library_files(), *OWN} - {"powersgd", "topkc", "thc"})  # of several rounds
F = np.float32
SIZES = [1, 2, 15, 16, 17, 31, 1000, 1023, 1024, 1025, 4097]
SHORT = [1, 17, 1025]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adacomp": [{"bin": 50}, {"bin": 1}],
    "dgc": [{"ratio": F(0.3), "sample": F(1)}, {"ratio": F(0.01), "clip": F(0.5)}, {"warmup_steps": 1300}],
    "graddrop": [{"drop": F(0.5)}],
    "qsgd": [{"bits": 2}, {"bits": 8}],
    "rotated": [{"bits": 8}],
    "sparseloco": [{"k": 1}, {"k": 700, "range": F(2.5)}],
    "tbq": [{"tau": F(0.01)}],
    "ternary": [{"clip": F(1)}, {"clip": F(64)}],
    "terngrad": [{"bits": 4}, {"bits": 8}],
    "threelc": [{"sparsity": F(1.75)}],
    "topk": [{"ratio": F(0.5)}],
}
FACTS: dict[str, list[dict[str, Any]]] = {"dgc": [{"nesterov": 1, "world": 3}]}
LARGE = {"graddrop": 33000, "threelc": 20000, "topk": 33000}  # where topk looks at a sample first
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(180)]


def inputs(n: int) -> Iterator[tuple[str, np.ndarray]]:
    random = np.random.default_rng(n)
    normal = (random.standard_normal(n) * 0.01).astype(F)
    odd = np.array([0.0, -0.0, 1e-42, -1e-42, 1e-30, 3.0, -3.0, 0.5], F)
    yield "heavy", normal**3
    yield "sparse", np.where(random.random(n) < 0.05, normal, F(0))
    yield "constant", np.full(n, -2.5, F)
    yield "odd", np.resize(odd, n)
    yield "denormal", np.resize(odd * F(1e-38), n)
    yield "zero", np.zeros(n, F)


def cases(name: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], np.ndarray]]:
    """Every size, with inputs that take turns; other parameters and facts at some sizes."""
    for place, n in enumerate(SIZES):
        found = list(inputs(n))
        for kind, x in (found[0], found[1 + place % 5])[: 1 if n > 2000 else 2]:
            yield f"{n} {kind}", {}, {}, x
    for n in SHORT:
        for settings in SETTINGS.get(name, []):
            for kind, x in list(inputs(n))[:2]:
                yield f"{n} {kind} {settings}", settings, {}, x
        for facts in FACTS.get(name, []):
            yield f"{n} {facts}", {}, facts, next(inputs(n))[1]
    if name in LARGE:
        kind, x = next(inputs(LARGE[name]))
        yield f"{len(x)} {kind}", {}, {}, x


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_states_are_those_of_the_text(
    name: str, workshop: Any, unit_machine: Any, native: Any, same_bits: Any
) -> None:
    libraries = workshop.built(name)
    for case, settings, facts, x in cases(name):
        shape = (1, len(x))
        machine = unit_machine(name, shape, **settings, **facts)
        ranks = {isa: native(library, name, shape, settings, **facts) for isa, library in libraries.items()}
        same_bits(machine, ranks, x, case)


@pytest.mark.parametrize("name", sorted({*NAMES, "powersgd"}))
def test_sizes_and_conditions_are_those_of_the_text(name: str, workshop: Any, unit_machine: Any, native: Any) -> None:
    for shape in ((1, 1), (1, 17), (40, 25), (1000, 600)):
        for settings in [{}, *SETTINGS.get(name, [])]:
            for step in (0, 5000):
                machine = unit_machine(name, shape, **settings, step=step)
                properties = machine.codec.properties
                for isa, library in workshop.built(name).items():
                    rank = native(library, name, shape, settings, step=step)
                    if properties.applies is not None:
                        assert rank.applies == bool(machine.value(properties.applies)), f"{shape} at {isa}"
                    if properties.unit is not None:
                        assert rank.unit == machine.value(properties.unit)
                    if properties.bound is not None:
                        assert rank.bound() == machine.value(properties.bound)
