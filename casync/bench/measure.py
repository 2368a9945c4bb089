"""The program of each rank of `casync bench`: the comparison of `auto`, then steps of every way in turn.

The plans on which `auto` settled take turns with the others, so that all meet the same network.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import casync.numpy as hvd
from casync.bench.ways import (
    AUTO,
    WARM_UP,
    Measured,
    Way,
    counted,
    dtype_of,
    is_way_of_its_own,
    links_of,
    own_plans,
    renamed,
)
from casync.observe.step_profile import Observation
from casync.plan.plans import GradientPlan
from casync.rendezvous import launcher_pipe as report
from casync.session.default import session

__all__ = ["measure"]

_TURNS = 20  # measured steps of each contender, at most
_AUTO_SHARE = 0.4  # of the time, for auto's comparison, which comes first
_AUTO_STEPS = 100
_ALONE_SHARE = 0.2  # of the time, for synchronisation alone, where that is asked for
_ALONE_TURNS = 5
_SETTLING = 2  # steps after the comparison, until the plans that stay are agreed on
_POOL = 1 << 22  # values that gradients are cut from

Array = np.ndarray[Any, Any]


def measure(
    step: Observation, codecs: Sequence[str], auto: str, seconds: float, *, alone: bool = False
) -> Measured | None:
    """Time this step for about `seconds` seconds; the figures on rank 0, None elsewhere. All ranks call it. `alone`:
    time also the synchronisation alone.

    Rank 0's clock decides when to stop.
    """
    began = time.perf_counter()
    model = _Model(step)
    hvd.init(plan_file="", log_level="INFO")
    try:
        model.fill(hvd.rank())
        plans, comparison = _compare(model, auto, began + _AUTO_SHARE * seconds)
    finally:
        hvd.shutdown()  # and all that codecs keep
    hvd.init(plan_file="")
    try:
        specs = {codec: codec for codec in codecs}
        if is_way_of_its_own(plans):
            session().fix_plans(renamed(plans, "", _prefix(len(specs))))
            specs[AUTO] = auto
        alone_s = _ALONE_SHARE * seconds if alone else 0.0
        ways = _take_turns(model, specs, began + seconds - alone_s)
        if alone:
            ways = _alone(model, specs, ways, began + seconds)
        return Measured(hvd.size(), hvd.cross_size(), ways, links_of(plans), comparison) if hvd.rank() == 0 else None
    finally:
        hvd.shutdown()


class _Model:
    """Gradients in memory, and their step. `names` and all else are in the order of the backward pass."""

    def __init__(self, step: Observation) -> None:
        self.names = [one.name for one in step.gradients]
        self._arrays = [np.empty(one.shape, dtype_of(one)) for one in step.gradients]
        self._ready = [one.ready_s for one in step.gradients]
        # All gradients of the last step are there by then, so nobody need wait for it.
        self._before_s = max(0.0, step.computes_s - self._ready[-1])
        self._pool = np.empty(0, np.float32)

    def fill(self, rank: int) -> None:
        """Write the gradients of a new step, which are partly alike on all ranks."""
        if not self._pool.size:
            alike, own = np.random.default_rng(99), np.random.default_rng(100 + rank)
            self._pool = alike.standard_normal(_POOL, np.float32) + own.standard_normal(_POOL, np.float32)
            self._pool *= np.float32(1e-2)
        for number, array in enumerate(self._arrays):
            flat, offset = array.reshape(-1), number * 7919 % (_POOL // 2)
            for begin in range(0, flat.size, _POOL // 2):
                part = flat[begin : begin + _POOL // 2]
                part[:] = self._pool[offset : offset + part.size]

    def step(self, prefix: str, codec: str, *, alone: bool = False) -> float:
        """Submit all gradients as the backward pass makes them ready, wait for all; returns the seconds, with those in
        which the program computes before that. `alone`: all are ready, and nothing computes.
        """
        begin = time.perf_counter()
        handles = []
        for name, array, ready in zip(self.names, self._arrays, self._ready, strict=True):
            if not alone and (early := begin + ready - time.perf_counter()) > 0:
                time.sleep(early)
            handles.append(hvd.allreduce_async_(array, name=prefix + name, compression=codec))
        for handle in handles:
            hvd.synchronize(handle)
        return (0.0 if alone else self._before_s) + time.perf_counter() - begin


def _all_know(answer: bool) -> bool:
    """Rank 0's answer, on all ranks. They go on from here together."""
    said = np.array([answer and hvd.rank() == 0], np.int32)
    hvd.allreduce_(said, name="casync bench: answer of rank 0", op=hvd.Sum)
    return bool(said[0])


def _spent() -> tuple[int, float]:
    """Return the bytes that this rank has sent, and the seconds of its codecs, since `init()`."""
    works = [work for codec in hvd.metrics().codecs.values() for work in (codec.encode, codec.merge, codec.decode)]
    return hvd.counters()["sent_bytes"], sum(work.seconds for work in works)


class _Figures:
    """The measurements of one way, step by step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._sent: list[float] = []
        self._work: list[float] = []

    def add(self, seconds: float, before: tuple[int, float], after: tuple[int, float]) -> None:
        """Note a step's time, and what `_spent` said before and after it."""
        self.seconds.append(seconds)
        self._sent.append(after[0] - before[0])
        self._work.append(after[1] - before[1])

    def way(self, plans: Mapping[str, Any]) -> Way:
        seconds, sent, work = (counted(values) for values in (self.seconds, self._sent, self._work))
        return Way(
            statistics.median(seconds), len(seconds), round(statistics.median(sent)), statistics.median(work), plans
        )


def _compare(model: _Model, auto: str, deadline: float) -> tuple[dict[str, GradientPlan], str]:
    """The plans of `auto` once it has compared, and the line in which it says so; none if that is not in time.

    It compares the time from one step's beginning to the next one's. So the gradients are not written anew meanwhile.
    """
    heard, began, steps_after = _Comparison(), time.perf_counter(), 0
    logger = logging.getLogger("casync")
    logger.addHandler(heard)
    try:
        for number in range(_AUTO_STEPS):
            now = time.perf_counter()
            _report(_AUTO_SHARE * max(number / _AUTO_STEPS, (now - began) / (deadline - began)), AUTO)
            if not _all_know(now < deadline and steps_after < _SETTLING):
                break
            steps_after += bool(heard.text)
            model.step("", auto)
        return (own_plans(hvd.plans(), "", model.names) if _all_know(bool(heard.text)) else {}), heard.text
    finally:
        logger.removeHandler(heard)


def _take_turns(model: _Model, specs: Mapping[str, str], deadline: float) -> dict[str, Way]:
    """The figures of each way, whose specs are given by its name. Each has one step at least."""
    figures = {way: _Figures() for way in specs}
    turns, began = WARM_UP + _TURNS, time.perf_counter()
    for turn in range(turns):
        for number, (way, spec) in enumerate(specs.items()):
            now = time.perf_counter()
            done = max((turn + number / len(specs)) / turns, (now - began) / max(deadline - began, 1e-3))
            _report(_AUTO_SHARE + (1 - _AUTO_SHARE) * done, way)
            model.fill(hvd.rank())
            if not _all_know(turn == 0 or now < deadline):
                return _ways(model, figures)
            before = _spent()
            seconds = model.step(_prefix(number), spec)
            figures[way].add(seconds, before, _spent())
    return _ways(model, figures)


def _alone(model: _Model, specs: Mapping[str, str], ways: Mapping[str, Way], deadline: float) -> dict[str, Way]:
    """The same ways, with the time of synchronisation alone. Each has one such step at least."""
    seconds: dict[str, list[float]] = {way: [] for way in specs}
    for turn in range(_ALONE_TURNS):
        for number, (way, spec) in enumerate(specs.items()):
            if not _all_know(turn == 0 or time.perf_counter() < deadline):
                break
            _report(1.0, f"{way}, alone")
            seconds[way].append(model.step(_prefix(number), spec, alone=True))
    return {name: replace(way, alone_s=statistics.median(seconds[name])) for name, way in ways.items()}


def _ways(model: _Model, figures: Mapping[str, _Figures]) -> dict[str, Way]:
    plans = hvd.plans()
    return {
        way: each.way(own_plans(plans, _prefix(number), model.names))
        for number, (way, each) in enumerate(figures.items())
    }


def _prefix(number: int) -> str:
    """Each way's gradients have names of their own."""
    return f"casync bench {number}: "


class _Comparison(logging.Handler):
    """Keeps the line in which `auto` says what it compared; only rank 0 logs it."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "casync", {}).get("event") == "compared":
            self.text = record.getMessage()


def _report(done: float, what: str) -> None:
    if hvd.rank() == 0:
        report.progress(min(done, 1.0), what)
