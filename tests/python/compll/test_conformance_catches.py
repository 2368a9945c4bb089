"""The conformance kit against codecs that break a promise each: the check of that promise must fail."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from casync import _core
from casync.compll.conformance.checks import CHECKS
from casync.compll.conformance.elements import to_elements, to_values
from casync.compll.conformance.isolation import isolated
from casync.compll.conformance.subject import Subject, open_subject
from casync.compll.conformance.trial import Result, perform
from casync.compll.plugin import compile_file
from casync.errors import CasyncError, CorruptPayloadError

EVERYTHING = tuple(check.name for check in CHECKS)
BROKEN = sorted((Path(__file__).parents[2] / "compll" / "broken").glob("*.cll"))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:.*fork:DeprecationWarning")


def failures(subject: Subject) -> dict[str, Result]:
    results = [perform(check, subject) for check in CHECKS]
    return {result.check: result for result in results if result.passed is False}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With all the files compiled, as many at a time as there are cores."""
    folder = str(tmp_path_factory.mktemp("cache"))
    environ = {**os.environ, "CASYNC_CACHE_DIR": folder}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda path: compile_file(path, path.read_text(encoding="utf-8"), environ), BROKEN))
    return folder


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_file_fails_in_the_promise_it_breaks(path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASYNC_CACHE_DIR", cache)
    stated = re.search(r"^// fails: ([\w ,]+)\.", path.read_text(encoding="utf-8"))
    assert stated is not None
    failed = failures(open_subject(str(path)))
    assert list(failed) == stated[1].split(", ")
    for result in failed.values():
        assert re.search(r"\d+ x \d+ gradient of float32, .* values, seed \d+", result.case)


class Wrapped:
    """A codec of the core, in which a subclass breaks something."""

    spec = "onebit"
    contractive = True
    draws = False
    fails: tuple[str, ...] = ()
    spreads = False  # further checks may fail with it

    def __init__(self) -> None:
        self.inner = _core.Codec(self.spec)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def run(self, segments):
        for segment in segments:
            self.one(segment)

    def one(self, segment):
        self.inner.run([segment])


class RememberingSomethingElse(Wrapped):
    fails = ("determinism", "checkpoint")
    spreads = True
    calls = 0

    def one(self, segment):
        super().one(segment)
        self.calls += 1
        if segment.payload_bytes and self.calls % 3 == 0:
            segment.payload[0] ^= 1


class AnotherDecodeWithoutVectors(Wrapped):
    fails = ("instruction sets",)

    def one(self, segment):
        super().one(segment)
        if segment.raw_out is not None and _core.isa() == "baseline":
            segment.raw_out[:] = np.nextafter(segment.raw_out, np.float32(0))


class WritingBehindItsBound(Wrapped):
    fails = EVERYTHING

    def one(self, segment):
        super().one(segment)
        if segment.payload is not None:
            segment.payload.base[len(segment.payload)] = 0


class LongerThanItsBound(Wrapped):
    spec = "test_topk(ratio=0.05)"
    fails = EVERYTHING

    def bound(self, shape, dtype, part, round):
        return self.inner.bound(shape, dtype, part, round) // 2

    def one(self, segment):
        if segment.payload is None:
            return super().one(segment)
        whole = segment.payload
        segment.payload = np.zeros(self.inner.bound(segment.shape, 0, segment.range, 0), np.uint8)
        super().one(segment)
        segment.payload = whole
        return None


FACTS = ("spec", "rounds", "feedback", "feedback_decay", "identity", "whole", "fixed_size", "prescaled",
         "merges_payloads", "merged_element", "momentum")  # fmt: skip


class OfNoFixedSize(Wrapped):
    spec = "test_topk(ratio=0.05)"
    fails = ("size",)

    def __init__(self):
        super().__init__()
        self.info = SimpleNamespace(**{name: getattr(self.inner.info, name) for name in FACTS} | {"fixed_size": True})


class DecayingNothing(Wrapped):
    fails = ("feedback", "mass")

    def __init__(self):
        super().__init__()
        self.info = SimpleNamespace(
            **{name: getattr(self.inner.info, name) for name in FACTS} | {"feedback_decay": 0.5}
        )


class ResidualOfTheOtherSign(Wrapped):
    fails = ("feedback", "mass")

    def one(self, segment):
        super().one(segment)
        if segment.residual is not None and not segment.nonfinite:
            segment.residual *= -1


class ForgettingWhatWasNotFinite(Wrapped):
    fails = ("not finite",)

    def one(self, segment):
        super().one(segment)
        if segment.residual is not None and segment.nonfinite:
            segment.residual[:] = 0


class SayingNothingOfNan(Wrapped):
    fails = ("not finite",)

    def one(self, segment):
        super().one(segment)
        segment.nonfinite = False


class AnotherInABatch(Wrapped):
    fails = ("batches",)

    def run(self, segments):
        super().run(segments)
        for segment in segments[1:]:
            if segment.payload is not None:
                segment.payload[:1] ^= 1


class KnowingItsPartition(Wrapped):
    spec = "terngrad(bits=4)"
    contractive, draws = False, True
    fails = ("partitions", "replicas")

    def one(self, segment):
        super().one(segment)
        if segment.payload is not None and segment.range[0] > 0:
            segment.payload[-1:] ^= 1


class AddingInItsOwnOrder(Wrapped):
    fails = ("merging",)

    def one(self, segment):
        segment.sources = sorted(segment.sources, key=lambda source: source.raw)
        super().one(segment)


class DeliveringWhatItDidNotSend(Wrapped):
    """The owner keeps the mean itself, which it encoded for the others."""

    fails = ("merging", "replicas", "mass")

    def one(self, segment):
        if segment.payload is None or segment.raw_out is None:
            return super().one(segment)
        payload, segment.payload = segment.payload, None
        residual, segment.residual = segment.residual, None
        super().one(segment)
        mean = segment.raw_out.copy()
        segment.payload, segment.residual = payload, residual
        super().one(segment)
        segment.raw_out[:] = mean
        return None


class TheSameDrawsOnEveryRank(Wrapped):
    spec = "terngrad(bits=2)"
    contractive, draws = False, True
    fails = ("determinism",)

    def one(self, segment):
        segment.rank = 0
        super().one(segment)


class TakingAnyLength(Wrapped):
    fails = ("wire",)

    def one(self, segment):
        try:
            super().one(segment)
        except CorruptPayloadError:
            segment.raw_out[:] = 0


class FailingOnForeignBytes(Wrapped):
    fails = ("wire",)

    def one(self, segment):
        try:
            super().one(segment)
        except CorruptPayloadError:
            raise CasyncError("an invariant does not hold") from None


class Threshold:
    """What exceeds an agreed tau is sent as tau or -tau, one byte each; the rest is pending. All in Python, and with
    what a quantiser does not have: own feedback, state, gather.
    """

    contractive = draws = spreads = False
    fails: tuple[str, ...] = ()
    unit = 512
    poison = -128
    info = SimpleNamespace(
        spec="threshold", rounds=["gather"], feedback="own", feedback_decay=1.0, identity=False, whole=False,
        fixed_size=True, prescaled=False, merges_payloads=False, merged_element="float32", momentum=False,
    )  # fmt: skip

    def cut(self, shape, element):
        size = shape[0] * shape[1]
        return size if element >= size else element // self.unit * self.unit

    def bound(self, shape, dtype, part, round):
        return part[1] - part[0]

    def state(self, shape):
        pending = dict(name="pending", elements=shape[0] * shape[1], per_element=True, shared=False, pending=True)
        tau = dict(name="tau", elements=1, per_element=False, shared=True, pending=False)
        return [SimpleNamespace(**pending), SimpleNamespace(**tau)]

    def start(self, shape, name_hash, index, values):
        pass

    def agreed(self):
        return 1

    def propose(self, segment, values):
        x = to_values(segment.sources[0].data, segment.dtype).astype(np.float32)
        values[0] = np.abs(x).mean() if len(x) else 0

    def agree(self, segment, values):
        segment.state[1][0] = values[0]

    def applies(self, shape, sequence):
        return True

    def run(self, segments):
        for segment in segments:
            values = [self.value(segment, source) for source in segment.sources]
            total = values[0]
            for value in values[1:]:
                total = total + value
            if segment.payload is not None:
                codes = self.encode(segment, total)
                segment.payload[: len(codes)] = codes.view(np.uint8)
                segment.payload_bytes = len(codes)
                total = codes
            if segment.raw_out is not None:
                segment.raw_out[:] = to_elements(total * np.float32(segment.mid), segment.dtype)
            segment.nonfinite = not np.isfinite(total).all() or self.poison in total

    def value(self, segment, source):
        if source.raw:
            return to_values(source.data, segment.dtype).astype(np.float32)
        if len(source.data) != segment.elements:
            raise CorruptPayloadError(f"{len(source.data)} bytes where {segment.elements} were expected")
        codes = source.data.view(np.int8)
        return np.where(codes == self.poison, np.nan, codes * segment.state[1][0]).astype(np.float32)

    def encode(self, segment, x):
        begin, end = segment.range
        codes = np.zeros(len(x), np.int8)
        pending, tau = segment.state[0][begin:end], segment.state[1][0]
        for at in range(0, len(x), self.unit):
            part = slice(at, at + self.unit)
            v = pending[part] + x[part]
            if not np.isfinite(v).all():
                codes[part] = self.poison
                continue
            codes[part] = np.sign(v) * (np.abs(v) > tau)
            self.keep(pending[part], v, codes[part] * tau)
        return codes

    def keep(self, pending, v, sent):
        pending[:] = v - sent


class ForgettingWhatIsPending(Threshold):
    fails = ("feedback", "mass")

    def keep(self, pending, v, sent):
        pending[:] = np.where(np.abs(v) > 0.02, 0, v - sent)


class AgreeingWithItself(Threshold):
    fails = ("replicas", "mass")

    def agree(self, segment, values):
        segment.state[1][0] = values[0] * (1 + segment.rank)


class KeepingStateOutside(Threshold):
    fails = ("checkpoint",)

    def __init__(self):
        self.kept = {}

    def agree(self, segment, values):
        self.kept[segment.name_hash] = values[0]

    def run(self, segments):
        for segment in segments:
            segment.state[1][0] = self.kept.get(segment.name_hash, 1.0)
        super().run(segments)


class StateOfAnotherSize(Threshold):
    fails = ("checkpoint",)

    def state(self, shape):
        pending, tau = super().state(shape)
        tau.per_element = True
        return [pending, tau]


SOUND = (Wrapped, Threshold)
STUBS = (*SOUND, *Wrapped.__subclasses__(), *Threshold.__subclasses__())


@pytest.mark.parametrize("stub", STUBS)
def test_a_codec_fails_in_the_promise_it_breaks(stub: Any) -> None:
    failed = failures(Subject(stub, stub.contractive, stub.draws))
    assert set(stub.fails) <= {*failed} if stub.spreads else tuple(failed) == stub.fails


class Crashing(Wrapped):
    def one(self, segment):
        if segment.raw_out is not None and len(segment.sources[0].data) < 5:
            os.kill(os.getpid(), signal.SIGKILL)
        super().one(segment)


class Misspelt(Wrapped):
    def one(self, segment):
        segment.no_such_method()


def test_a_crash_is_a_failure_with_its_case() -> None:
    wire = next(check for check in CHECKS if check.name == "wire")
    result = isolated(wire, Subject(Crashing, True))
    assert result.passed is False and "killed by SIGKILL" in result.seen
    assert "10000 x 1 gradient" in result.case and "the first 0 of" in result.case
    assert isolated(wire, Subject(Wrapped, True)) == perform(wire, Subject(Wrapped, True))


def test_a_check_that_fails_by_itself_is_no_success(capfd: pytest.CaptureFixture[str]) -> None:
    result = isolated(CHECKS[0], Subject(Misspelt, True))
    assert result.passed is False and "ended with status 1" in result.seen
    assert "no_such_method" in capfd.readouterr().err


class NeverApplying(Wrapped):
    def applies(self, shape, sequence):
        return False


def test_nothing_tried_is_nothing_passed() -> None:
    subject = Subject(NeverApplying, True)
    failed = failures(subject)
    assert list(failed) == ["round trip"] and "applies to none" in failed["round trip"].seen
    assert not any(perform(check, subject).passed for check in CHECKS)
