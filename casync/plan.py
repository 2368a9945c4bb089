"""Plans as values and as JSON: how each gradient of a job is synchronised.

The same fields and names as the core's `GradientPlan`, so C++, Python and the files grep alike; `measured_s` is
Python's alone. A file is one object:

    {"format": "casync-plan", "version": 1, "gradients": {"conv1.weight": {"topology": "ps", "codec": "onebit", ...}}}

    plans = read_plans("plan.json")
    plans["conv1.weight"].codec           # "onebit"
    write_plans("copy.json", plans)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from casync import graph
from casync._constants import TOPOLOGIES

__all__ = ["TOPOLOGIES", "GradientPlan", "PlanError", "from_json", "read_plans", "to_json", "write_plans"]

_FORMAT = "casync-plan"
_VERSION = 1
_UINT32 = 2**32 - 1
_UINT64 = 2**64 - 1


class PlanError(ValueError):
    """Text that is no plan, or a plan that cannot be; says where and why."""


@dataclass(frozen=True)
class GradientPlan:
    """How one gradient is synchronised. Checked when made: a plan that exists can be carried to the core."""

    topology: str = "direct"
    """One of `TOPOLOGIES`, or the text of a graph; in a file a graph is an object (`casync.graph`)."""
    codec: str = "none"
    """A spec, for example `terngrad(bits=2)`."""
    partitions: int = 1
    """K, at least 1; fewer are made when the gradient has fewer units."""
    first_owner: int = 0
    """Partition p is owned by member (first_owner + p) mod N."""
    epoch: int = 0
    """Plans of one epoch hold together; a re-plan starts the next."""
    reason: str = ""
    """Why, in words, with the predicted times."""
    until: int = 0
    """Holds for the gradient's steps below this one, in which a codec begins; 0: for good."""
    on_trial: bool = False
    """Ways to synchronise were still being compared when this was told: a session that is given it plans anew."""
    predicted_s: float = 0.0
    """Seconds that one synchronisation takes, as the planner predicted; 0 here and below: it had no such number."""
    uncompressed_s: float = 0.0
    """The same for codec `none`, by the best topology for that."""
    payload_bytes: int = 0
    """Bytes of the gradient as one rank encodes it; where their number varies, as measured, or else at most."""
    measured_inter_s_per_byte: float = 0.0
    """What was measured when the plan was made: seconds per byte of a link between hosts."""
    measured_intra_s_per_byte: float = 0.0
    """Likewise, between ranks of one host."""
    measured_encode_s_per_byte: float = 0.0
    """Likewise, seconds in which the codec encodes a byte of the gradient."""
    measured_decode_s_per_byte: float = 0.0
    """Likewise, seconds in which it decodes one."""
    measured_s: float = field(default=0.0, compare=False)
    """Seconds that a synchronisation by this plan has taken, as the rank measured it that returned the plan: each rank
    has another number, so it makes no two plans differ."""

    def __post_init__(self) -> None:
        for name, least in (("partitions", 1), ("first_owner", 0), ("epoch", 0), ("until", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _UINT32:
                raise PlanError(f"{name} must be an integer from {least} to {_UINT32}, not {value!r}")
        if type(self.payload_bytes) is not int or not 0 <= self.payload_bytes <= _UINT64:
            raise PlanError(f"payload_bytes must be an integer from 0 to {_UINT64}, not {self.payload_bytes!r}")
        for name in _TIMES:
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
                raise PlanError(f"{name} must be a number of seconds, at least 0, not {value!r}")
        if not isinstance(self.on_trial, bool):
            raise PlanError(f"on_trial must be true or false, not {self.on_trial!r}")
        for name in ("topology", "codec", "reason"):
            if not isinstance(getattr(self, name), str):
                raise PlanError(f"{name} must be text, not {getattr(self, name)!r}")
        if self.topology not in TOPOLOGIES and not graph.is_graph(self.topology):
            raise PlanError(f"topology {self.topology!r} is not known; known: {', '.join(TOPOLOGIES)}, or a graph")
        if not self.codec:
            raise PlanError('codec is empty; write "none" for no compression')


_TIMES = [item.name for item in fields(GradientPlan) if item.type == "float"]


def to_json(plans: Mapping[str, GradientPlan]) -> str:
    """The text of a plan file, one gradient after another in the order of `plans`."""
    gradients = {name: asdict(plan) for name, plan in plans.items()}
    for content in gradients.values():
        if graph.is_graph(content["topology"]):
            content["topology"] = graph.to_document(content["topology"])
    return json.dumps({"format": _FORMAT, "version": _VERSION, "gradients": gradients}, indent=2) + "\n"


def from_json(text: str) -> dict[str, GradientPlan]:
    """Plans by gradient name. Fields left out have their defaults; unknown ones are refused, as typing errors."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise PlanError(f'not a plan: no "format": "{_FORMAT}" at its top')
    if document.get("version") != _VERSION:
        raise PlanError(f"plan version {document.get('version')!r}; this CaSync reads version {_VERSION}")
    gradients = document.get("gradients")
    if not isinstance(gradients, dict):
        raise PlanError('"gradients" must be an object of plans by gradient name')
    return {name: _gradient(name, content) for name, content in gradients.items()}


def _gradient(name: str, content: object) -> GradientPlan:
    if not isinstance(content, dict):
        raise PlanError(f"gradient {name!r}: must be an object, not {content!r}")
    unknown = set(content) - {item.name for item in fields(GradientPlan)}
    if unknown:
        raise PlanError(f"gradient {name!r}: unknown field {sorted(unknown)[0]!r}")
    try:
        if isinstance(content.get("topology"), dict | list):
            content = content | {"topology": graph.to_text(content["topology"])}
        return GradientPlan(**content)
    except (PlanError, graph.GraphError) as error:
        raise PlanError(f"gradient {name!r}: {error}") from None


def read_plans(path: str | os.PathLike[str]) -> dict[str, GradientPlan]:
    """Plans of a file; a PlanError names the file."""
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except (PlanError, UnicodeDecodeError) as error:
        raise PlanError(f"{os.fspath(path)}: {error}") from None


def write_plans(path: str | os.PathLike[str], plans: Mapping[str, GradientPlan]) -> None:
    """Write a plan file, whole or not at all: a reader never sees half of one."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(to_json(plans), encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
