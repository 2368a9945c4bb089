"""Observes, for `casync bench -- COMMAND`, the program that it started: which gradients a step has, when they are
ready, and how long a step computes.

The program is not asked: rank 0 reads the session's own meters now and then, and tells casyncrun.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from casync._constants import FLOATING_DTYPES
from casync.observe.metrics import Metrics
from casync.plan.plans import GradientPlan
from casync.rendezvous import launcher_pipe as report

__all__ = ["NEEDED_STEPS", "OBSERVE", "Gradient", "Observation", "StepProfiler", "observer_of", "seen"]

OBSERVE = "CASYNC_OBSERVE"
"""The variable by which `casync bench` asks for it."""
NEEDED_STEPS = 8
"""How many steps a program must begin. The first ones do not count, in which names are negotiated."""

_NOT_COUNTED = 2
_EVERY_S = 0.1
_ALLREDUCED = "allreduce."  # before the program's own name


@dataclass(frozen=True)
class Gradient:
    """A tensor of floats that is allreduced in each step."""

    name: str
    """The gradient's name in the program."""
    shape: tuple[int, ...]
    dtype: str
    ready_s: float
    """Seconds from one moment, which is the same for all gradients of the step."""


@dataclass(frozen=True)
class Observation:
    """The facts known of a program's step."""

    gradients: tuple[Gradient, ...]
    """The step's gradients, in the order in which they become ready."""
    computes_s: float
    """How long a step takes without the time in which the program waits for gradients, in seconds."""


def seen(before: Metrics, after: Metrics, plans: Mapping[str, GradientPlan]) -> Observation:
    """The mean step between two moments of a session, at least one step apart. Gradients count from the first one on.
    Pure.
    """
    steps = after.step_seconds.count - before.step_seconds.count
    found = []
    for key, gradient in after.gradients.items():
        earlier = before.gradients.get(key)
        operations = gradient.operations - (earlier.operations if earlier else 0)
        described = re.fullmatch(r"(\w+) \(([\d, ]*)\)", plans[key].tensor) if key in plans else None
        if not key.startswith(_ALLREDUCED) or described is None or described[1] not in FLOATING_DTYPES:
            continue
        if operations < max(1, steps - 1):  # the step at either end may be half in
            continue
        ready = (gradient.ready_seconds - (earlier.ready_seconds if earlier else 0.0)) / operations
        shape = tuple(int(extent) for extent in described[2].replace(",", " ").split())
        found.append(Gradient(key.removeprefix(_ALLREDUCED), shape, described[1], ready))
    took = after.step_seconds.sum - before.step_seconds.sum
    waited = after.exposed_seconds.sum - before.exposed_seconds.sum
    return Observation(tuple(sorted(found, key=lambda one: one.ready_s)), max(0.0, took - waited) / steps)


class StepProfiler:
    """Reads a session's meters until the steps that are needed have begun, on a thread of its own."""

    def __init__(self, metrics: Callable[[], Metrics], plans: Callable[[], Mapping[str, GradientPlan]]) -> None:
        self._metrics, self._plans = metrics, plans
        self._before = metrics()
        self._is_done = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="casync-observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The session is about to end: what was seen by now is all."""
        self._stopping.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._is_done and not self._stopping.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        metrics = self._metrics()
        if self._is_done:
            return
        report.observed({"steps": metrics.steps})
        if metrics.steps <= _NOT_COUNTED:
            self._before = metrics
        elif metrics.steps >= NEEDED_STEPS:
            self._is_done = True
            _tell(seen(self._before, metrics, self._plans()))


def _tell(observation: Observation) -> None:
    for one in observation.gradients:
        report.observed(asdict(one))
    report.observed({"computes_s": observation.computes_s})


def observer_of(
    environ: Mapping[str, str], metrics: Callable[[], Metrics], plans: Callable[[], Mapping[str, GradientPlan]]
) -> StepProfiler | None:
    """An observer of rank 0's session, if `casync bench` started the job."""
    return StepProfiler(metrics, plans) if environ.get(OBSERVE) else None
