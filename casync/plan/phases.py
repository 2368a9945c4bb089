"""Plans as lists of phases, as plan files have them.

    [{"scope": "flat", "routine": "alltoall", "codec": "onebit", "partitions": 8},
     {"scope": "flat", "routine": "allgather", "codec": "onebit", "partitions": 8}]

The partitions of a gradient go through one phase after the other. Which lists there are follows from the routes of the
core: each has a name, so `ps` stands for the list above.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from casync._constants import PHASES

__all__ = ["PhaseError", "described", "from_phases", "to_phases"]

Way: TypeAlias = "tuple[tuple[str, str], ...]"
_Value = TypeVar("_Value", bound=Hashable)

_FIELDS = ("scope", "routine", "codec", "encode_on", "decode_on", "partitions")
_PLACES = ("tensor", "host")
_TOPOLOGIES: dict[Way, str] = {way: name for name, way in reversed(PHASES.items())}


class PhaseError(ValueError):
    """A list of phases that nothing executes; says which and why."""


def described(topology: str) -> str:
    """The phases of a topology for people: "flat alltoall, flat allgather". Empty for a graph."""
    return _text(PHASES.get(topology, ()))


def to_phases(topology: str, codec: str, partitions: int, on_host: bool) -> list[dict[str, Any]]:
    """The phases of a plan whose topology has a name. `on_host`: it is computed there, wherever the gradient is."""
    phases = []
    for scope, routine in PHASES[topology]:
        phase: dict[str, Any] = {"scope": scope, "routine": routine, "codec": codec, "partitions": partitions}
        if scope == "intra":
            phase["codec"] = "none"
        elif on_host:
            phase |= {"encode_on": "host", "decode_on": "host"}
        phases.append(phase)
    return phases


def from_phases(document: object) -> dict[str, Any]:
    """Return what the phases mean: `topology`, `codec`, `partitions` and `on_host` of a plan. Raises `PhaseError`."""
    if not isinstance(document, list) or not document:
        raise PhaseError(f'"phases" must be a list of objects, not {document!r}')
    for number, phase in enumerate(document):
        _check(number, phase)
    way = tuple((phase["scope"], phase["routine"]) for phase in document)
    if way not in _TOPOLOGIES:
        known = "; ".join(f"{_text(other)} ({name})" for other, name in _TOPOLOGIES.items())
        raise PhaseError(f"no topology goes by {_text(way)}; there are {known}")
    coded = [phase for phase in document if phase["scope"] != "intra"]
    places = _one(
        "encode_on and decode_on", (_place(phase, end) for phase in coded for end in ("encode_on", "decode_on"))
    )
    return {
        "topology": _TOPOLOGIES[way],
        "codec": _one("codec", (phase.get("codec", "none") for phase in coded)),
        "partitions": _one("partitions", (phase.get("partitions", 1) for phase in document)),
        "on_host": places == "host",
    }


def _check(number: int, phase: object) -> None:
    if not isinstance(phase, dict) or not {"scope", "routine"} <= set(phase) <= set(_FIELDS):
        raise PhaseError(
            f'phase {number}: must be an object with "scope" and "routine", and perhaps '
            f"{', '.join(_FIELDS[2:])}; not {phase!r}"
        )
    for field in ("scope", "routine", "codec"):
        if not isinstance(phase.get(field, ""), str):
            raise PhaseError(f"phase {number}: {field} must be text, not {phase[field]!r}")
    if type(phase.get("partitions", 1)) is not int:
        raise PhaseError(f"phase {number}: partitions must be an integer, not {phase['partitions']!r}")
    if phase["scope"] != "intra":
        return
    if phase.get("codec", "none") != "none":
        raise PhaseError(f"phase {number}: the ranks of a host exchange raw elements, so codec must be none there")
    for end in ("encode_on", "decode_on"):
        if end in phase:
            raise PhaseError(f"phase {number}: nothing is encoded between the ranks of a host, so it has no {end}")


def _place(phase: Mapping[str, Any], end: str) -> str:
    place: str = phase.get(end, "tensor")
    if place not in _PLACES:
        raise PhaseError(f'{end} must be "tensor" (where the tensor is) or "host", not {place!r}')
    return place


def _one(field: str, values: Iterable[_Value]) -> _Value:
    """The value that all phases have."""
    found = list(dict.fromkeys(values))
    if len(found) > 1:
        raise PhaseError(f"{field} must be the same in all phases, not {found[0]!r} and {found[1]!r}")
    return found[0]


def _text(way: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{scope} {routine}" for scope, routine in way)
