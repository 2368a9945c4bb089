"""The plans that a session is given, out of a plan file or a checkpoint, in place of plans of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from casync.errors import InvalidArgumentError
from casync.plan import GradientPlan, PlanError, read_plans

__all__ = ["GivenPlans"]

_LOG = logging.getLogger("casync")


class GivenPlans:
    """Those of the plan file `path`; none for an empty path. Raises `InvalidArgumentError` if they cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._plans = _read(path)
        self.origin = f"The plan is from {path}: correct it there, or take it out to have the tensor planned anew"
        """For an error about one of them: where it is from, and what to do."""

    def __len__(self) -> int:
        """How many plans the file has."""
        return len(self._plans)

    def as_options(self) -> dict[str, dict[str, Any]]:
        """As the core takes them, by the names of their tensors."""
        return _as_options(self._plans)

    def from_checkpoint(self, plans: Mapping[str, GradientPlan]) -> dict[str, dict[str, Any]]:
        """`plans`, which a checkpoint held, as the core takes them; errors are about these from now on."""
        self.origin = "The plan is from what casync.load_state() read: a codec that the program names comes before it"
        return _as_options(plans)

    def report_unused(self, used: Mapping[str, GradientPlan]) -> None:
        """Warn of plans in the file that are not among those `used`. A plan file of another model would otherwise
        change nothing, without a word.
        """
        unused = [name for name, plan in self._plans.items() if used.get(name) != plan and not plan.on_trial]
        if unused:
            _LOG.warning(
                "%d of the %d plans in %s were not used, the first of them that of %s: no such tensor was allreduced, "
                "or the script names another codec for it (compression='auto' leaves the choice to the file)",
                len(unused),
                len(self._plans),
                self._path,
                unused[0],
            )


def _as_options(plans: Mapping[str, GradientPlan]) -> dict[str, dict[str, Any]]:
    return {name: asdict(plan) for name, plan in plans.items() if not plan.on_trial}


def _read(path: str) -> dict[str, GradientPlan]:
    """The plans in the file `path`; none for an empty path. Any reason why they cannot be used is an
    `InvalidArgumentError` that names file and remedy.
    """
    if not path:
        return {}
    from casync import _core

    try:
        plans = read_plans(path)
        for name, plan in plans.items():
            try:
                _core.check_codec(plan.codec)
            except InvalidArgumentError as error:
                if error.kind == "unloaded_codec":  # the program will name the file, if at all
                    continue
                raise PlanError(f"{path}: gradient {name!r}: {error}") from None
    except (OSError, PlanError) as error:
        raise InvalidArgumentError(
            f"the plan file cannot be used: {error}. Write one with casync.plan.write_plans(path, hvd.plans()), or "
            "unset CASYNC_PLAN_FILE (plan_file=) to have all tensors planned anew"
        ) from None
    return plans
