"""Plans as lists of phases, as plan files have them.

    [{"scope": "flat", "routine": "alltoall", "codec": "onebit", "partitions": 8},
     {"scope": "flat", "routine": "allgather", "codec": "onebit", "partitions": 8}]

The partitions of a gradient go through one phase after the other. Which lists there are follows from the routes of the
core: each has a name, so `ps` stands for the list above. So it is in files of version 2.

In files of version 3 phases may differ, as the compression options of ByteComp do (section 4.2): a phase without a
codec carries raw elements, one with `"encode_on": "nowhere"` passes on the payloads of the phase before. The name of
such a list is its text: `phases(intra reduce_scatter, inter allgather coded, intra allgather)`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from casync._constants import PHASES

__all__ = ["PhaseError", "described", "from_list", "from_phases", "in_short", "is_list", "to_list", "to_phases"]

Way: TypeAlias = "tuple[tuple[str, str], ...]"
_Value = TypeVar("_Value", bound=Hashable)

_FIELDS = ("scope", "routine", "codec", "encode_on", "decode_on", "partitions")
_PLACES = ("tensor", "host")
_PHASE = "[a-z]+ [a-z_]+( (raw|coded|passed))?"
_NOWHERE = "nowhere"  # what a phase passes on is decoded and encoded
_TOPOLOGIES: dict[Way, str] = {way: name for name, way in reversed(PHASES.items())}


class PhaseError(ValueError):
    """A list of phases that nothing executes; says which and why."""


def described(topology: str) -> str:
    """The phases of a topology that has a name, for people: "flat alltoall, flat allgather". Empty for all others."""
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
    phases = _checked(document)
    for number, phase in enumerate(phases):
        _check(number, phase)
    way = tuple((phase["scope"], phase["routine"]) for phase in phases)
    if way not in _TOPOLOGIES:
        known = "; ".join(f"{_text(other)} ({name})" for other, name in _TOPOLOGIES.items())
        raise PhaseError(f"no topology goes by {_text(way)}; there are {known}")
    coded = [phase for phase in phases if phase["scope"] != "intra"]
    places = _one(
        "encode_on and decode_on", (_place(phase, end) for phase in coded for end in ("encode_on", "decode_on"))
    )
    return {
        "topology": _TOPOLOGIES[way],
        "codec": _one("codec", (phase.get("codec", "none") for phase in coded)),
        "partitions": _one("partitions", (phase.get("partitions", 1) for phase in phases)),
        "on_host": places == "host",
    }


def is_list(topology: str) -> bool:
    """Whether a topology is a list of phases in the core's text, and not a name. The core says whether the list is one
    of the decision tree (`_core.why_not_phases`).
    """
    return re.fullmatch(rf"phases\({_PHASE}(, {_PHASE})*\)", topology) is not None


def in_short(topology: str) -> str:
    """The one text of a list of phases, whatever blanks it is written with; all other topologies as they are."""
    if not (topology.strip().startswith("phases(") and topology.strip().endswith(")")):
        return topology
    inside = topology.strip().removeprefix("phases(").removesuffix(")")
    phases = [" ".join(phase.split()).removesuffix(" raw") for phase in inside.split(",")]
    return f"phases({', '.join(phases)})"


def to_list(topology: str, codec: str, partitions: int, on_host: bool) -> list[dict[str, Any]]:
    """The phases of a plan whose topology is a list."""
    phases: list[dict[str, Any]] = []
    for text in topology.removeprefix("phases(").removesuffix(")").split(","):
        scope, routine, *carries = text.split()
        phase: dict[str, Any] = {"scope": scope, "routine": routine, "partitions": partitions}
        if carries and carries != ["raw"]:
            place = "host" if on_host else "tensor"
            passed = carries == ["passed"]
            phase |= {"codec": codec, "encode_on": _NOWHERE if passed else place, "decode_on": place}
            if passed:
                phases[-1]["decode_on"] = _NOWHERE
        phases.append(phase)
    return phases


def from_list(document: object) -> dict[str, Any]:
    """Return what phases that may differ mean, as `from_phases` does. Raises `PhaseError`."""
    phases = _checked(document)
    coded = [phase for phase in phases if phase.get("codec", "none") != "none"]
    words = []
    for number, phase in enumerate(phases):
        passed = phase.get("encode_on") == _NOWHERE
        if passed != (number > 0 and phases[number - 1].get("decode_on") == _NOWHERE):
            raise PhaseError(
                f"phase {number}: its encode_on is {_NOWHERE!r} exactly where the decode_on of the phase before is"
            )
        carries = "passed" if passed else "coded" if phase in coded else "raw"
        words.append(f"{phase['scope']} {phase['routine']}{'' if carries == 'raw' else f' {carries}'}")
        for end in ("encode_on", "decode_on"):
            if end in phase and phase not in coded:
                raise PhaseError(f"phase {number}: it has no codec, so it has no {end}")
    if phases[-1].get("decode_on") == _NOWHERE:
        raise PhaseError(f"phase {len(phases) - 1}: the last phase decodes what it carries")
    places = [_place(phase, end) for phase in coded for end in ("encode_on", "decode_on") if phase.get(end) != _NOWHERE]
    return {
        "topology": f"phases({', '.join(words)})",
        "codec": _one("codec", (phase["codec"] for phase in coded)) if coded else "none",
        "partitions": _one("partitions", (phase.get("partitions", 1) for phase in phases)),
        "on_host": bool(places) and _one("encode_on and decode_on", places) == "host",
    }


def _checked(document: object) -> list[dict[str, Any]]:
    if not isinstance(document, list) or not document:
        raise PhaseError(f'"phases" must be a list of objects, not {document!r}')
    for number, phase in enumerate(document):
        _check_fields(number, phase)
    return document


def _check(number: int, phase: Mapping[str, Any]) -> None:
    """Raise `PhaseError` if a phase of a version 2 file names a codec inside a host."""
    if phase["scope"] != "intra":
        return
    if phase.get("codec", "none") != "none":
        raise PhaseError(f"phase {number}: the ranks of a host exchange raw elements, so codec must be none there")
    for end in ("encode_on", "decode_on"):
        if end in phase:
            raise PhaseError(f"phase {number}: nothing is encoded between the ranks of a host, so it has no {end}")


def _check_fields(number: int, phase: object) -> None:
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
