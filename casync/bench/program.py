"""Runs the user's own program until it is known what a step of it is, and ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from casync.bench.ways import dtype_of
from casync.errors import JobError
from casync.launcher.cli import StartError, prepare
from casync.launcher.job import Job
from casync.launcher.options import Options
from casync.launcher.preflight import with_python
from casync.observe.step_profile import NEEDED_STEPS, OBSERVE, Gradient, Observation

__all__ = ["Heard", "observe"]


class Heard:
    """The facts that rank 0 has told of the program so far, line by line (casync.observe.step_profile)."""

    def __init__(self) -> None:
        self.steps: int | None = None
        """The steps so far; None: the program has not called `hvd.init()`."""
        self.step: Observation | None = None
        """The step; None: rank 0 has not told all of it yet."""
        self._gradients: list[Gradient] = []

    def add(self, what: Mapping[str, Any]) -> bool:
        """Add what a line tells, and return whether that was all."""
        if "steps" in what:
            self.steps = int(what["steps"])
        elif "name" in what:
            self._gradients.append(Gradient(**{**what, "shape": tuple(what["shape"])}))
        else:
            self.step = Observation(tuple(self._gradients), what["computes_s"])
        return self.step is not None

    def so_far(self) -> str:
        """Say, for people, how far the program has come."""
        if self.steps is None:
            return "without a call of hvd.init()"
        return f"after {self.steps} step{'s' * (self.steps != 1)}, and {NEEDED_STEPS} are needed"


def observe(
    options: Options,
    environ: Mapping[str, str],
    limit: float,
    write: Callable[[str, bytes], None],
    progress: Callable[[float, str], None],
) -> Observation:
    """Run the command of `options` for at most `limit` seconds; `write` is `Job`'s.

    Raises `JobError`, with what was seen, if that does not show what its steps are, and KeyboardInterrupt after Ctrl-C.
    Nothing of the program is left running.
    """
    heard, began = Heard(), time.monotonic()

    def observed(what: Mapping[str, Any]) -> bool:
        is_all = heard.add(what)
        if heard.steps is not None:
            progress(min(1.0, heard.steps / NEEDED_STEPS), "your program")
        return is_all

    options = replace(options, command=with_python(options.command, str(Path.cwd()), environ.get("PATH")))
    environ = {**environ, OBSERVE: "1"}
    try:
        job = Job(options, prepare(options, environ), environ, write=write, observed=observed, limit=limit)
    except StartError as error:
        raise JobError(str(error)) from None
    status = job.run()
    if job.ledger.interrupt == signal.SIGINT:
        raise KeyboardInterrupt
    if heard.step is not None:
        return _measurable(heard.step)
    if status == 0:
        raise JobError(f"the program ended {heard.so_far()}")
    if time.monotonic() - began >= limit and job.ledger.first_failed is None:
        raise JobError(f"the program was ended after {limit:.0f} s, {heard.so_far()}; --seconds gives it more time")
    why = job.ledger.verdict().text.removeprefix("the first rank to fail: ")
    raise JobError(f"the program failed: {why}", peer=job.ledger.first_failed)


def _measurable(step: Observation) -> Observation:
    if not step.gradients:
        raise JobError(
            "the program allreduces no tensor of floats in each of its steps, so there is nothing to measure"
        )
    for one in step.gradients:
        dtype_of(one)
    return step
