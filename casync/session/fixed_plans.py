"""The plans that a session is given, out of a plan file or a checkpoint, in place of plans of its own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from casync.errors import InvalidArgumentError
from casync.plan.phases import is_list
from casync.plan.plans import GradientPlan, PlanError, Plans, read_plans

__all__ = ["FixedPlans"]

_LOG = logging.getLogger("casync")


class FixedPlans:
    """The plans of the file `path`; none for an empty path. Raises `InvalidArgumentError` if they cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._plans = _read(path)
        self.origin = f"The plan is from {path}: correct it there, or take it out to have the tensor planned anew"
        """For an error about one of them: where it is from, and what to do."""

    def check_world(self, host_of: Sequence[int], is_process_set: bool) -> None:
        """Rank r is on host `host_of[r]`. Raises `InvalidArgumentError` if the file was made for another world. A
        process set then goes without: the file is for the world that the set is of.
        """
        made_for = self._plans.host_of
        if not made_for or list(made_for) == list(host_of):
            return
        if not is_process_set:
            raise _unusable(f"{self._path}: it was made for {_world(made_for)}, and this job has {_world(host_of)}")
        self._plans = Plans({})

    def __len__(self) -> int:
        """How many plans the file has."""
        return len(self._plans)

    def as_options(self) -> dict[str, dict[str, Any]]:
        """Return the plans as the core takes them, by the names of their tensors."""
        return _as_options(self._plans)

    def from_checkpoint(self, plans: Mapping[str, GradientPlan]) -> dict[str, dict[str, Any]]:
        """`plans`, which a checkpoint held, as the core takes them; errors are about these from now on."""
        self.origin = (
            "The plan is from what casync.load_state() read, so that training goes on bit for bit. A codec that the "
            "program names comes before it. A topology does not: name the one that was saved, or leave it at auto"
        )
        return _as_options(plans)

    def report_unused(self, used: Mapping[str, GradientPlan]) -> None:
        """Warn of plans in the file that are not among those `used`. A plan file of another model would otherwise
        change nothing, without a word. A plan that holds until a step may have been used and be over.
        """
        unused = [
            name
            for name, plan in self._plans.items()
            if used.get(name) != plan and not plan.on_trial and (plan.until == 0 or name not in used)
        ]
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


def _world(host_of: Sequence[int]) -> str:
    """For example "4 ranks on 2 hosts (2 + 2)"."""
    ranks = Counter(host_of)
    hosts = f"{len(ranks)} host{'s' if len(ranks) > 1 else ''}"
    return f"{len(host_of)} rank{'s' if len(host_of) > 1 else ''} on {hosts} ({' + '.join(map(str, ranks.values()))})"


def _unusable(why: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the plan file cannot be used: {why}. Write one with casync.plan.write_plans(path, hvd.plans()), or unset "
        "CASYNC_PLAN_FILE (plan_file=) to have all tensors planned anew"
    )


def _read(path: str) -> Plans:
    """The plans in the file `path`; none for an empty path. Any reason why they cannot be used is an
    `InvalidArgumentError` that names file and remedy.
    """
    if not path:
        return Plans({})
    from casync import _core

    try:
        plans = read_plans(path)
        for name, plan in plans.items():
            try:
                if is_list(plan.topology) and (why := _core.why_not_phases(plan.topology)):
                    raise PlanError(f"{path}: gradient {name!r}: {why}")
                _core.check_codec(plan.codec)
            except InvalidArgumentError as error:
                if error.kind == "unloaded_codec":  # the program will name the file, if at all
                    continue
                raise PlanError(f"{path}: gradient {name!r}: {error}") from None
    except (OSError, PlanError) as error:
        raise _unusable(error) from None
    return plans
