"""Plans as values and as JSON: how each gradient of a job is synchronised.

The same fields and names as the core's `GradientPlan`, so C++, Python and the files grep alike; `measured_s` is
Python's alone. A file is one object:

    {"format": "casync-plan", "version": 2, "world": {"host_of": [0, 0, 1, 1]},
     "gradients": {"allreduce.fc.weight": {"tensor": "float32 (64, 3)", "phases": [...], ...}}}

What goes on between whom is a list of phases (`casync.plan.phases`), or its name, as in files of version 1. In a file
of version 3 phases may differ, and lists that have a name are written as such:

    {"topology": "ps", "codec": "onebit", "partitions": 8}

    plans = read_plans("plan.json")
    plans["conv1.weight"].codec           # "onebit"
    write_plans("copy.json", plans)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from casync._constants import PHASES, TOPOLOGIES
from casync.errors import InvalidArgumentError
from casync.plan import topology as graph
from casync.plan.phases import PhaseError, from_list, from_phases, is_list, to_list, to_phases

__all__ = ["TOPOLOGIES", "GradientPlan", "PlanError", "Plans", "from_json", "read_plans", "to_json", "write_plans"]

_FORMAT = "casync-plan"
_VERSIONS = (1, 2, 3)
_INT32 = 2**31
_UINT32 = 2**32 - 1
_UINT64 = 2**64 - 1


class PlanError(InvalidArgumentError):
    """Text that is no plan, or a plan that cannot be; says where and why."""


@dataclass(frozen=True)
class GradientPlan:
    """How one gradient is synchronised. Checked when made: a plan that exists can be carried to the core."""

    topology: str = "direct"
    """One of `TOPOLOGIES`; `two_level(direct)`, `two_level(ps)` or `two_level(ring)`, which say how it goes on between
    hosts; or the text of a graph or of a list of phases. In a file a graph is an object (`casync.plan.topology`), a
    list is a list (`casync.plan.phases`)."""
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
    """The gradient's step from which another plan holds; 0: this one holds for good."""
    on_trial: bool = False
    """Ways to synchronise were still being compared when this was told: a session that is given it plans anew."""
    period: int = 1
    """It is synchronised in the gradient's steps s with s % period == offset. In the others the result is zero, and the
    gradient waits in the residual. Of a gradient with at least `period` partitions, about as many of them go in each
    step, the first ones in that step. In a file both are in the object `when`."""
    offset: int = 0
    """At least 0, and less than `period`."""
    init: float = 1.0
    """In every step what waits is multiplied by COVAP's coefficient (section III-D of the paper): by this in step 0,
    and by `ascend_range` more after each `ascend_steps` steps, until it is 1. Below 1 that part of it is lost. In a
    file the three are in the object `when`."""
    ascend_steps: int = 50
    ascend_range: float = 0.1
    priority: int | None = None
    """Gradients of a higher priority go first among those that wait. None leaves that to the program."""
    on_host: bool = False
    """Computed on the host, also where the gradient is on a device. In a file it is the `encode_on` and `decode_on` of
    phases."""
    tensor: str = ""
    """The tensor it was made for, for example `float32 (64, 3)`: another tensor refuses it. Empty: not known."""
    predicted_s: float = 0.0
    """Seconds from when the gradient is ready until it is synchronised, as the planner predicted: among the others of
    its step where `auto` has planned the whole model, else alone. 0 here and below: it had no such number."""
    uncompressed_s: float = 0.0
    """The same seconds for codec `none`, by the best topology for that."""
    payload_bytes: int = 0
    """Bytes of the gradient as one rank encodes it; where their number varies, as measured, or else at most."""
    measured_inter_s_per_byte: float = 0.0
    """Seconds per byte of a link between hosts, as measured when the plan was made."""
    measured_intra_s_per_byte: float = 0.0
    """Seconds per byte between ranks of one host, likewise."""
    measured_encode_s_per_byte: float = 0.0
    """Seconds in which the codec encodes a byte of the gradient, likewise."""
    measured_decode_s_per_byte: float = 0.0
    """Seconds in which it decodes one, likewise."""
    measured_s: float = field(default=0.0, compare=False)
    """Seconds that a synchronisation by this plan has taken, as the rank measured it that returned the plan: each rank
    has another number, so it makes no two plans differ."""

    def __post_init__(self) -> None:
        for name, least in _INTEGERS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _UINT32:
                raise PlanError(f"{name} must be an integer from {least} to {_UINT32}, not {value!r}")
        if self.priority is not None and (type(self.priority) is not int or not -_INT32 <= self.priority < _INT32):
            raise PlanError(f"priority must be an integer from {-_INT32} to {_INT32 - 1}, not {self.priority!r}")
        if type(self.payload_bytes) is not int or not 0 <= self.payload_bytes <= _UINT64:
            raise PlanError(f"payload_bytes must be an integer from 0 to {_UINT64}, not {self.payload_bytes!r}")
        for name in _TIMES:
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
                raise PlanError(f"{name} must be a number of seconds, at least 0, not {value!r}")
        for name in ("init", "ascend_range"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1 or (name == "ascend_range" and value == 0):
                begin = "above 0" if name == "ascend_range" else "from 0"
                raise PlanError(f"{name} must be a number {begin} to 1, not {value!r}")
        if self.offset >= self.period:
            raise PlanError(f"offset must be less than period, not {self.offset} of {self.period}")
        for name in ("on_trial", "on_host"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for name in ("topology", "codec", "reason", "tensor"):
            if not isinstance(getattr(self, name), str):
                raise PlanError(f"{name} must be text, not {getattr(self, name)!r}")
        if self.topology not in PHASES and not graph.is_graph(self.topology) and not is_list(self.topology):
            raise PlanError(
                f"topology {self.topology!r} is not known; known: {', '.join(PHASES)}, a graph, or a list of phases"
            )
        if not self.codec:
            raise PlanError('codec is empty; write "none" for no compression')


_OF_COEFFICIENT = ("init", "ascend_steps", "ascend_range")
_USUAL_COEFFICIENT = {item.name: item.default for item in fields(GradientPlan) if item.name in _OF_COEFFICIENT}
_TIMES = [item.name for item in fields(GradientPlan) if item.type == "float" and item.name not in _OF_COEFFICIENT]
_INTEGERS = (
    *(("partitions", 1), ("first_owner", 0), ("period", 1), ("offset", 0), ("ascend_steps", 1)),
    *(("epoch", 0), ("until", 0)),
)
_OF_PHASES = ("topology", "codec", "partitions", "on_host")
_OF_WHEN = ("period", "offset", *_OF_COEFFICIENT)
_SINCE_VERSION_2 = {*_OF_WHEN, "on_host", "priority", "tensor"}


class Plans(dict[str, GradientPlan]):
    """Plans by gradient name, and the world that they are for."""

    def __init__(self, plans: Mapping[str, GradientPlan], host_of: Sequence[int] = ()) -> None:
        super().__init__(plans)
        self.host_of = tuple(host_of)
        """The number of each rank's host, by rank; empty: not known."""


def to_json(plans: Mapping[str, GradientPlan]) -> str:
    """The text of a plan file, one gradient after another in the order of `plans`."""
    version = 3 if any(is_list(plan.topology) for plan in plans.values()) else 2
    document: dict[str, Any] = {"format": _FORMAT, "version": version}
    if isinstance(plans, Plans) and plans.host_of:
        document["world"] = {"host_of": list(plans.host_of)}
    document["gradients"] = {name: _to_document(plan, version) for name, plan in plans.items()}
    return json.dumps(document, indent=2) + "\n"


def _to_document(plan: GradientPlan, version: int) -> dict[str, Any]:
    content = asdict(plan)
    way = {name: content.pop(name) for name in _OF_PHASES}
    when = {name: content.pop(name) for name in _OF_WHEN}
    when = {name: value for name, value in when.items() if value != _USUAL_COEFFICIENT.get(name)}
    if graph.is_graph(plan.topology):
        way["topology"] = graph.to_document(plan.topology)
    elif is_list(plan.topology) and (plan.codec != "none" or "coded" not in plan.topology):
        way = {"phases": to_list(**way)}
    elif version == 2:
        way = {"phases": to_phases(**way)}
    return {"tensor": content.pop("tensor"), **way, "when": when, **content}


def from_json(text: str) -> Plans:
    """Plans by gradient name. Fields left out have their defaults; unknown ones are refused, as typing errors."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise PlanError(f'not a plan: no "format": "{_FORMAT}" at its top')
    version = document.get("version")
    if version not in _VERSIONS:
        raise PlanError(f"plan version {version!r}; this CaSync reads versions {_VERSIONS[0]} to {_VERSIONS[-1]}")
    if unknown := set(document) - ({"format", "version", "gradients"} | ({"world"} if version > 1 else set())):
        raise PlanError(f"unknown field {sorted(unknown)[0]!r}")
    gradients = document.get("gradients")
    if not isinstance(gradients, dict):
        raise PlanError('"gradients" must be an object of plans by gradient name')
    plans = {name: _gradient(name, content, version) for name, content in gradients.items()}
    return Plans(plans, _host_of(document["world"]) if "world" in document else ())


def _host_of(world: object) -> Sequence[int]:
    hosts = world.get("host_of") if isinstance(world, dict) and len(world) == 1 else None
    if not isinstance(hosts, list) or not hosts or any(type(host) is not int or host < 0 for host in hosts):
        raise PlanError('"world" must be an object with "host_of", the number of its host for each rank')
    return hosts


def _gradient(name: str, content: object, version: int) -> GradientPlan:
    try:
        return _from_document(content, version)
    except (PlanError, PhaseError, graph.GraphError) as error:
        raise PlanError(f"gradient {name!r}: {error}") from None


def _from_document(content: object, version: int) -> GradientPlan:
    if not isinstance(content, dict):
        raise PlanError(f"must be an object, not {content!r}")
    known = {item.name for item in fields(GradientPlan)}
    known = known - _SINCE_VERSION_2 if version == 1 else known - set(_OF_WHEN) | {"phases", "when"}
    if unknown := set(content) - known:
        raise PlanError(f"unknown field {sorted(unknown)[0]!r}")
    values = dict(content)
    if "phases" in values:
        if both := [name for name in _OF_PHASES if name in values]:
            raise PlanError(f"it has phases, and {both[0]} beside them; leave one of them out")
        values |= (from_list if version == 3 else from_phases)(values.pop("phases"))
    if "when" in values:
        when = values.pop("when")
        if not isinstance(when, dict) or not set(when) <= set(_OF_WHEN):
            raise PlanError(f'"when" must be an object of {" and ".join(_OF_WHEN)}, or some of them, not {when!r}')
        values |= when
    if isinstance(values.get("topology"), dict | list):
        values["topology"] = graph.to_text(values["topology"])
    return GradientPlan(**values)


def read_plans(path: str | os.PathLike[str]) -> Plans:
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
