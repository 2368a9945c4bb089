"""Units that are not finite, payloads that have no room, and what decoding is asked to do with its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll.ir.choices import choices_of
from casync.compll.ir.lower import lower
from casync.compll.ir.program import loses
from casync.compll.library import library_files
from casync.compll.types import Array
from support.quantisers import library_quantisers

OWN = sorted(path.stem for path in (Path(__file__).parents[3] / "compll" / "units").glob("*.cll"))
NAMES = sorted({*library_files(), *OWN} - {"powersgd", "topkc", "thc"})
LONG = sorted({*NAMES} - library_quantisers())  # these know the size of their payloads
F = np.float32
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(180)]


def normal(n: int, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 0.01).astype(F)


def poisoned(machine: Any) -> bytes:
    """NaN for floats, 0 for integers, nothing behind the first count; all bits set where there are but integers."""
    out, items = b"", machine.codec.payload
    only_codes = not any(item.counted or item.type.element.name == "float" for item in items)
    for item in items:
        if item.counted:
            return out + b"\xff" * 4
        array, bits = isinstance(item.type, Array), machine.bits(item.type.element)
        n, bits = (machine.length(item.type.length), bits) if array else (1, max(8, bits))
        if item.type.element.name == "float":
            out += np.full(n, np.nan, F).tobytes()
        else:
            out += (b"\xff" if only_codes else b"\0") * ((n * bits + 7) // 8)
    return out


def ranks(name: str, n: int, workshop: Any, native: Any) -> dict[str, Any]:
    return {isa: native(library, name, (1, n), {}) for isa, library in workshop.built(name).items()}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_sent_as_nan_and_changes_nothing(
    name: str, workshop: Any, unit_machine: Any, native: Any
) -> None:
    for n in (1, 17, 1025, 3000):
        feedback = (machine := unit_machine(name, (1, n))).codec.properties.feedback == "wrapper"
        machine.encode(normal(n))  # lengths may be variables of encode
        expected = poisoned(machine)
        for isa, rank in ranks(name, n, workshop, native).items():
            rank.encode(normal(n))  # so that states hold something
            before = [state.copy() for state in rank.states]
            for bad, place in ((np.nan, 0), (np.inf, n // 2), (-np.inf, n - 1)):
                where = f"{bad} at {place} of {n}, {isa}"
                x, residual = normal(n, 2), normal(n, 3)
                (residual if feedback and bad > 0 else x)[place] = bad
                kept = residual.copy()
                payload, nonfinite = rank.encode(x, residual if feedback else None)
                assert nonfinite and payload == expected, where
                assert residual.tobytes() == kept.tobytes(), where
                decoded = rank.decode(payload, keep=True)
                assert decoded is not None and np.isnan(decoded).all(), where
                assert [state.tobytes() for state in rank.states] == [state.tobytes() for state in before], where


@pytest.mark.parametrize("name", NAMES)
def test_what_overflows_on_the_way_changes_nothing_either(name: str, workshop: Any, native: Any) -> None:
    for n in (17, 1025):
        for isa, rank in ranks(name, n, workshop, native).items():
            rank.encode(normal(n))
            before = [state.copy() for state in rank.states]
            payload, nonfinite = rank.encode(np.full(n, 3e38, F))
            assert payload is not None
            if nonfinite:
                decoded = rank.decode(payload)
                assert decoded is not None and np.isnan(decoded).all(), isa
                assert [state.tobytes() for state in rank.states] == [state.tobytes() for state in before], isa


@pytest.mark.parametrize("name", LONG)
def test_a_payload_without_room_is_refused(name: str, workshop: Any, native: Any) -> None:
    """`Native.encode` looks at what is behind the payload."""
    n = 1025
    for rank in ranks(name, n, workshop, native).values():
        payload, _ = rank.encode(normal(n))
        assert payload is not None and len(payload) <= rank.bound()
        for capacity in {0, 1, min(4, len(payload) - 1), len(payload) // 2, len(payload) - 1}:
            before = [state.copy() for state in rank.states]
            assert rank.encode(normal(n), capacity=capacity)[0] is None, capacity
            for state, old in zip(rank.states, before, strict=True):
                state[:] = old
        x = np.full(n, np.nan, F)
        whole, _ = rank.encode(x)
        assert whole is not None and rank.encode(x, capacity=len(whole) - 1)[0] is None


@pytest.mark.parametrize("name", LONG)
def test_decoding_into_a_sum_or_a_residual(name: str, workshop: Any, native: Any) -> None:
    n = 1025
    for rank in ranks(name, n, workshop, native).values():
        payload, _ = rank.encode(normal(n))
        decoded, before, x = rank.decode(payload), normal(n, 2), normal(n, 3)
        np.testing.assert_array_equal(rank.decode(payload, before, into=1), before + decoded)
        lost = rank.decode(payload, before, into=2, accumulated=x, divisor=0.25)
        np.testing.assert_array_equal(lost, x + before - decoded / F(0.25))


@pytest.mark.parametrize("name", NAMES)
def test_the_residual_is_part_of_what_is_encoded(name: str, workshop: Any, unit_machine: Any, native: Any) -> None:
    """y = (accumulated + residual) * mid, in float32."""
    n, mid = 1025, F(0.25)
    if unit_machine(name, (1, n)).codec.properties.feedback != "wrapper":
        pytest.skip("keeps no residual")
    x, residual = normal(n), normal(n, 2)
    machine = unit_machine(name, (1, n))
    expected = machine.encode((x + residual) * mid)
    for rank in ranks(name, n, workshop, native).values():
        if machine.codec.init is not None:
            rank.init((x + residual) * mid)
        assert rank.encode(x, residual.copy(), mid=float(mid))[0] == expected


@pytest.mark.parametrize("name", LONG)
def test_the_residual_that_encoding_leaves_is_what_decoding_would(
    name: str, workshop: Any, unit_machine: Any, native: Any
) -> None:
    codec = unit_machine(name, (1, 1)).codec
    if not all(loses(lower(codec, choice).rounds[0]) for choice in choices_of(codec)):
        pytest.skip("decoding leaves it")
    for n in (1, 4, 17, 1025, 5000):
        for mid in (1.0, 0.25, 1 / 3):
            x, residual = normal(n), normal(n, 2)
            residual[: n // 2] = 0  # a few zeros, alone and in runs
            x[n // 3 : n // 2] = 0
            for rank in ranks(name, n, workshop, native).values():
                left = residual.copy()
                payload, _ = rank.encode(x, left, mid=mid)
                lost = rank.decode(payload, residual, into=2, accumulated=x, divisor=mid)
                assert left.tobytes() == lost.tobytes()
