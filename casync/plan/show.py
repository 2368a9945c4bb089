"""Plans as text: a table of choices, or the reason of each. Pure functions from plans to lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from casync.plan.phases import described
from casync.plan.plans import GradientPlan
from casync.plan.topology import shown

__all__ = ["explanations", "summary", "table"]

_HEADINGS = (
    "gradient",
    "codec",
    "K",
    "topology",
    "steps",
    "first owner",
    "epoch",
    "payload",
    "predicted",
    "measured",
    "uncompressed",
)
_NUMBERS = {"K", "first owner", "epoch", "payload", "predicted", "measured", "uncompressed"}


def _bytes(size: int) -> str:
    for unit, least in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= least:
            return f"{size / least:.4g} {unit}"
    return f"{size} B" if size else "-"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds else "-"


def table(plans: Mapping[str, GradientPlan]) -> list[str]:
    """One line per gradient, in the order of the plan, below a line of headings; columns as wide as they need.

    The steps are there if a gradient does not go in all of them.
    """
    rows = [_HEADINGS]
    for name, plan in plans.items():
        rows.append(
            (
                name,
                plan.codec,
                str(plan.partitions),
                shown(plan.topology),
                _steps(plan),
                str(plan.first_owner),
                str(plan.epoch),
                _bytes(plan.payload_bytes),
                _time(plan.predicted_s),
                _time(plan.measured_s),
                _time(plan.uncompressed_s),
            )
        )
    leave_out = "steps" if all(plan.period == 1 for plan in plans.values()) else None
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
            for cell, width, heading in zip(row, widths, _HEADINGS, strict=True)
            if heading != leave_out
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def summary(plans: Mapping[str, GradientPlan]) -> str:
    """How many gradients go by which codec and topology, the most frequent first."""
    if not plans:
        return "no gradients"
    counts = Counter(f"{plan.codec} over {shown(plan.topology)}" for plan in plans.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{len(plans)} gradient{'s' if len(plans) > 1 else ''}: {kinds}"


def explanations(plans: Mapping[str, GradientPlan]) -> list[str]:
    """One line per gradient: its choice, why in the planner's words, and what was measured by then."""
    return [
        f"{name}: {plan.codec}, K={plan.partitions}, {_way(plan)}{_when(plan)}; "
        f"{plan.reason or 'no reason was recorded'}{_beside(plan)}{_measured(plan)}"
        for name, plan in plans.items()
    ]


def _way(plan: GradientPlan) -> str:
    phases = described(plan.topology)
    return f"{shown(plan.topology)} ({phases})" if phases else shown(plan.topology)


def _steps(plan: GradientPlan) -> str:
    if plan.period == 1:
        return "all"
    if plan.partitions >= plan.period:
        return f"all, 1/{plan.period} in each"
    return f"s mod {plan.period} = {plan.offset}"


def _when(plan: GradientPlan) -> str:
    where = ", computed on the host" if plan.on_host else ""
    if plan.period == 1:
        return where
    if plan.partitions >= plan.period:
        where += f", a part of it in each of {plan.period} steps"
    else:
        where += f", in step {plan.offset} of every {plan.period}"
    return where + (f", with {plan.init:g} of what waits at first" if plan.init < 1 else "")


def _beside(plan: GradientPlan) -> str:
    if not plan.measured_s:
        return ""
    took = f"; it took {_time(plan.measured_s)}"
    return f"{took}, {plan.measured_s / plan.predicted_s:.3g} times what was predicted" if plan.predicted_s else took


def _measured(plan: GradientPlan) -> str:
    costs = {
        "between hosts": plan.measured_inter_s_per_byte,
        "on a host": plan.measured_intra_s_per_byte,
        "to encode": plan.measured_encode_s_per_byte,
        "to decode": plan.measured_decode_s_per_byte,
    }
    found = ", ".join(f"{cost * 1e9:.3g} ns/B {what}" for what, cost in costs.items() if cost)
    return found and f"; measured: {found}"
