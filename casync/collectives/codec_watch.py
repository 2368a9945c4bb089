"""The watch of a `CompressionMonitor` over the gradients of one optimizer or DDP hook: it measures, tells, falls back.

In a step that is measured a sample of each compressed gradient is summed uncompressed beside it. A second, small sum
has what each rank has found. Both are allreduces, in which a rank that has joined takes part with zeros.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from casync.observe.compression_monitor import (
    REMEMBERED,
    CompressionMonitor,
    Measured,
    Sums,
    fault,
    is_due,
    measured,
    places,
    residual_ratio,
)
from casync.observe.logs import report_logger
from casync.observe.metrics import OWN, CompressionMetrics
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, squared_norm_of
from casync.tensors.signature import Average, OpKind, OpSignature, Sum, user_name

__all__ = ["CodecWatch", "report"]

_LOG = logging.getLogger("casync")
_REPORTS = "compression"
_Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class _Seen(Generic[T]):
    """A gradient of this step, before it was submitted."""

    values: T
    first: int
    stride: int
    sample: _Vector
    squared_norm: float


class CodecWatch(Generic[T]):
    """One optimizer's. `sees` is called for each gradient, and `step_over` after the step, on one thread at a time."""

    def __init__(self, tensors: Tensors[T], monitor: CompressionMonitor) -> None:
        self._tensors, self._monitor = tensors, monitor
        self._name = ""
        self._step: int | None = None  # the one under way
        self._seen: dict[str, _Seen[T]] = {}
        self._history: dict[str, list[Measured]] = {}
        self._told: set[str] = set()

    def start(self, owner: Session, first: str) -> None:
        """`first`: the name of the first gradient, alike on all ranks, by which they tell it from other watches."""
        if not self._name:
            self._name = f"watch.{first}"
            owner.call_numbers.start(self._name)

    def begin(self, owner: Session) -> None:
        """A step is under way, if there was none. Ranks whose epochs differ in length count alike: see `Replicas`."""
        if self._step is None:
            self._step = owner.call_numbers.next(self._name) + 1

    def sees(self, owner: Session, asked: OpSignature, values: T, loss_scale: float) -> None:
        """The gradient with these terms and values is about to be reduced in place."""
        self.begin(owner)
        assert self._step is not None
        if not is_due(self._step, self._monitor.every) or not _is_compressed(asked, owner.config.min_numel):
            return
        first, stride = places(math.prod(asked.shape), self._monitor.sample, self._step)
        sample = self._sampled(values, first, stride)
        squared_norm = self._tensors.squared_norm(values) / loss_scale**2
        self._seen[asked.name] = _Seen(values, first, stride, sample, squared_norm)

    def forget(self, owner: Session, name: str) -> None:
        """The gradient goes with another codec from now on."""
        self._history.pop(name, None)
        self._told.discard(name)
        owner.compression.pop(name, None)

    def drop(self) -> None:
        """The step has failed: it is not measured."""
        self._seen.clear()
        self._step = None

    def step_over(self, owner: Session, op: int, disputed: Collection[str] = ()) -> None:
        """All gradients of the step are reduced. Measures, if it is due; collective and blocking then.

        `disputed`: tensors that were not reduced as they were seen. The same on all ranks.
        """
        step, self._step = self._step, None
        seen = {name: self._seen[name] for name in sorted(self._seen.keys() - set(disputed))}
        self._seen.clear()
        if step is None or not seen:
            return
        plans = owner.plans()
        for name, sums in self._measure(owner, op, seen).items():
            known = owner.compression.get(name)
            error, residual = self._learn(name, measured(sums))
            owner.compression[name] = CompressionMetrics(
                step=step,
                codec=plans[name].codec,
                gradient_bytes=self._tensors.nbytes(seen[name].values),
                payload_bytes=plans[name].payload_bytes,
                error=math.nan if error is None else error,
                residual=0.0 if residual is None else residual,
                fault="" if known is None else known.fault,
            )
        if owner.rank == 0:
            report_logger(_REPORTS).info("step %d: %s", step, report({name: owner.compression[name] for name in seen}))
        self._judge(owner, step, seen)

    def _learn(self, name: str, one: Measured | None) -> tuple[float | None, float | None]:
        """Remember a measurement; its vNMSE and its residual, as metrics have them."""
        history = self._history.setdefault(name, [])
        if one is None:
            return math.nan, math.nan
        history.append(one)
        del history[: -max(REMEMBERED, self._monitor.rises + 1)]
        return one.error, residual_ratio(history)

    def _sampled(self, values: T, first: int, stride: int) -> _Vector:
        return np.array(self._tensors.every(values, first, stride), np.float64)

    def _measure(self, owner: Session, op: int, seen: dict[str, _Seen[T]]) -> dict[str, Sums]:
        finite = {name: math.isfinite(one.squared_norm) for name, one in seen.items()}
        true = np.concatenate([one.sample if finite[name] else 0 * one.sample for name, one in seen.items()])
        np.nan_to_num(true, copy=False)
        _sum(owner, f"{self._name}.sample", true)
        if op == Average:
            true /= owner.size
        numbers = np.zeros((len(seen), len(Sums._fields)))
        end = 0
        for row, (name, one) in enumerate(seen.items()):
            begin, end = end, end + len(one.sample)
            numbers[row] = self._own_part(owner, name, one, true[begin:end]) if finite[name] else _NONFINITE
        _sum(owner, f"{self._name}.numbers", numbers)
        return {name: Sums(*map(float, row)) for name, row in zip(seen, numbers, strict=True)}

    def _own_part(self, owner: Session, name: str, one: _Seen[T], true: _Vector) -> Sums:
        """Return what this rank has found of one gradient. Its own values of it are finite."""
        result = self._sampled(one.values, one.first, one.stride)
        held_back = owner.codec_states.held_back(name)
        residual = 0.0 if held_back is None else squared_norm_of(held_back)
        error = squared_norm_of(result - true)
        keepers = float(held_back is not None)
        if not math.isfinite(error + residual):
            return Sums(0, 0, 0, one.squared_norm, keepers, nonfinite=0, broken=1)
        return Sums(error, squared_norm_of(true), residual, one.squared_norm, keepers, nonfinite=0, broken=0)

    def _judge(self, owner: Session, step: int, names: Iterable[str]) -> None:
        found = {name: fault(self._history[name], self._monitor) for name in names if self._history[name]}
        faults = {name: what for name, what in found.items() if what is not None and name not in self._told}
        for name, what in faults.items():
            self._told.add(name)
            owner.compression[name] = known = replace(owner.compression[name], fault=what)
            if owner.rank == 0:
                self._warn(name, known.codec, what, step)
        if self._monitor.fallback is not None:
            owner.codec_states.fall_back({name: f"always({self._monitor.fallback})" for name in faults})

    def _warn(self, name: str, codec: str, what: str, step: int) -> None:
        then = (
            'give it another codec, or have the monitor do so: fallback="bf16"'
            if self._monitor.fallback is None
            else f"it goes in {self._monitor.fallback} from now on, after one uncompressed step with all that was held "
            "back"
        )
        _LOG.warning("step %d: codec %s of gradient %s %s; %s", step, codec, user_name(name), what, then)


_NONFINITE = Sums(0, 0, 0, 0, 0, nonfinite=1, broken=0)


def _is_compressed(asked: OpSignature, min_numel: int) -> bool:
    if asked.compression == "none":
        return False
    return asked.compression.startswith("always(") or math.prod(asked.shape) >= min_numel


def _sum(owner: Session, name: str, values: _Vector) -> None:
    """Add up the arrays of all ranks in place."""
    terms = OpSignature(f"{OWN}{name}", OpKind.ALLREDUCE, "float64", values.shape, Sum)
    registration = owner.register(terms)
    address = values.ctypes.data
    owner.synchronize(owner.submit(registration, address, address, values, wake=False))


def report(found: Mapping[str, CompressionMetrics]) -> str:
    """Return a line about what was measured in one step, by gradient. Pure."""
    raw = sum(one.gradient_bytes for one in found.values())
    payloads = sum(one.payload_bytes for one in found.values())
    errors = _largest("vNMSE", {name: one.error for name, one in found.items()})
    residuals = _largest("|residual| / |gradient|", {name: one.residual for name, one in found.items()})
    size = f"{_megabytes(raw)} as {_megabytes(payloads)} ({raw / payloads:.3g} times smaller)"
    return f"compressed gradients: {len(found)}, {size}; {errors}; {residuals}"


def _largest(what: str, values: Mapping[str, float]) -> str:
    known = {name: value for name, value in values.items() if value > 0}  # NaN is not
    name = max(known, key=lambda one: known[one], default="")
    return f"largest {what} {known[name]:.3g} ({user_name(name)})" if name else f"no {what}"


def _megabytes(number: int) -> str:
    return f"{number / 1e6:.3g} MB"
