"""Clusters as TOML files: what `casync simulate --cluster` takes from one.

    hosts = 16
    ranks_per_host = 8
    known = ["hosts", "ranks_per_host", "network.rate"]

    [network]
    rate = "100gbit"

A file says only what it knows of the machines; the rest is the simulator's. Of what it says, `known` has what the
source states; the rest is assumed, and the output lists it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from casync.bench.reference_models import MODELS
from casync.bench.units import GBIT, parse_rate, parse_seconds
from casync.errors import InvalidArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Cluster", "CodecCosts", "Compute", "Link", "load", "shipped"]

T = TypeVar("T")

CodecSeconds = tuple[float, float, float, float]
"""To encode: a call, and each raw byte; to decode: likewise."""


@dataclass(frozen=True)
class Link:
    """One direction of a host's link, or of a rank's inside its host."""

    rate: float
    """Bytes per second."""
    latency_s: float
    message_s: float
    """The planner counts so much for a message, besides its bytes."""


@dataclass(frozen=True)
class CodecCosts:
    """The costs of a codec's calls, by where they are computed. None: the file does not say it."""

    device: CodecSeconds | None = None
    host: CodecSeconds | None = None


@dataclass(frozen=True)
class Compute:
    """The times that a model computes in a step, on one device or processor."""

    backward_s: float = 0.0
    forward_s: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Hosts of one kind. The defaults are what the simulator assumes of a cluster that is not described."""

    name: str = ""
    source: str = ""
    hosts: int = 4
    ranks_per_host: int = 1
    network: Link = Link(GBIT, 50e-6, 5e-6)
    """Between hosts. The ranks of a host share it."""
    inside: Link = Link(1e10, 2e-6, 5e-6)
    """Between the ranks of a host."""
    copy_rate: float | None = None
    """Bytes per second between a device and its host, each way; None: gradients are in the host's memory."""
    processors: int = 1
    """So many processors of the host compute the codecs of one rank."""
    codecs: Mapping[str, CodecCosts] = field(default_factory=dict)
    """By canonical spec."""
    models: Mapping[str, Compute] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    """The values that no source states: the file assumes them. In words, by key."""
    said: frozenset[str] = frozenset()
    """The keys of all that the file says."""

    def host_of(self) -> list[int]:
        """The host of each rank."""
        return [host for host in range(self.hosts) for _ in range(self.ranks_per_host)]

    def costs(self, place: str) -> dict[str, CodecSeconds]:
        """By codec what it costs at a `place`, "device" or "host", as far as the file says."""
        found = {spec: getattr(costs, place) for spec, costs in self.codecs.items()}
        return {spec: seconds for spec, seconds in found.items() if seconds is not None}

    def left(self, codecs: Iterable[str]) -> list[str]:
        """What the file leaves to the simulator, in words, for a step with `codecs`."""
        priors = {
            "network.rate": f"{self.network.rate / GBIT:g} Gbit/s",
            "network.latency": f"{1e6 * self.network.latency_s:g} us",
            "network.message": f"{1e6 * self.network.message_s:g} us",
            "inside.rate": f"{self.inside.rate / 1e9:g} GB/s",
            "inside.latency": f"{1e6 * self.inside.latency_s:g} us",
            "inside.message": f"{1e6 * self.inside.message_s:g} us",
            "copy.rate": "gradients are in the host's memory",
            "processors.for_codecs": f"{self.processors}",
        }
        priors |= {f"codecs.{codec}": "one core that copies 8 GB/s" for codec in sorted(codecs) if codec != "none"}
        return [
            f"{key}: {value}"
            for key, value in priors.items()
            if not any(said == key or said.startswith(f"{key}.") for said in self.said)
        ]


def shipped() -> list[str]:
    """The names of the clusters that come with the package."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def load(given: str) -> Cluster:
    """The cluster of a file, or one that is shipped, by its name.

    Raises `InvalidArgumentError` for a file that cannot be read, and, with what is known, for an unknown name or key
    and for a value of a wrong type or without sense.
    """
    try:
        if given.endswith(".toml"):
            text = Path(given).read_text(encoding="utf-8")
        elif given in shipped():
            text = (_folder() / f"{given}.toml").read_text(encoding="utf-8")
        else:
            raise InvalidArgumentError(f"it is not known; known: {', '.join(shipped())}, or a file that ends in .toml")
        return _Reader(tomllib.loads(text)).cluster()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InvalidArgumentError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError(f"cluster {os.fspath(given)!r}: {reason}") from None


def _folder() -> Any:
    return importlib.resources.files("casync.bench").joinpath("clusters")


class _Reader:
    """Reads a document, and remembers what it says."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._said: dict[str, Any] = {}

    def cluster(self) -> Cluster:
        size = {"hosts": _count, "ranks_per_host": _count}
        tables = ("network", "inside", "copy", "processors", "codecs", "models")
        understood = ("name", "source", "known", *size, *tables)
        for key in self._document:
            if key not in understood:
                raise InvalidArgumentError(f"{key} is not known; known: {', '.join(understood)}")
        sizes = self._values("", {key: value for key, value in self._document.items() if key in size}, size)
        processors = self._values("processors", self._table("processors"), {"for_codecs": _count})
        found = Cluster(
            name=_read("name", self._document.get("name", ""), _text),
            source=_read("source", self._document.get("source", ""), _text),
            hosts=sizes.get("hosts", Cluster.hosts),
            ranks_per_host=sizes.get("ranks_per_host", Cluster.ranks_per_host),
            network=self._link("network", Cluster.network),
            inside=self._link("inside", Cluster.inside),
            copy_rate=self._values("copy", self._table("copy"), {"rate": _rate}).get("rate"),
            processors=processors.get("for_codecs", Cluster.processors),
            codecs=dict(self._codec(spec, costs) for spec, costs in self._table("codecs").items()),
            models={model: self._model(model, times) for model, times in self._table("models").items()},
        )
        known = _read("known", self._document.get("known", []), _texts)
        for key in known:
            if key not in self._said:
                said = ", ".join(self._said) or "nothing"
                raise InvalidArgumentError(f"known: the file says nothing of {key!r}; it says {said}")
        assumed = {key: _shown(value) for key, value in self._said.items() if key not in known}
        return dataclasses.replace(found, assumed=assumed, said=frozenset(self._said))

    def _table(self, name: str) -> dict[str, Any]:
        return _read(name, self._document.get(name, {}), _is_table)

    def _values(self, where: str, table: Any, readers: Mapping[str, Callable[[Any], T]]) -> dict[str, T]:
        """Each value of a table by its key, as its reader returns it."""
        found = {}
        for key, value in _read(where, table, _is_table).items():
            path = f"{where}.{key}" if where else key
            if key not in readers:
                raise InvalidArgumentError(f"{path} is not known; known: {', '.join(readers)}")
            found[key] = _read(path, value, readers[key])
            self._said[path] = value
        return found

    def _link(self, name: str, prior: Link) -> Link:
        found = self._values(name, self._table(name), {"rate": _rate, "latency": _seconds, "message": _seconds})
        return Link(
            found.get("rate", prior.rate), found.get("latency", prior.latency_s), found.get("message", prior.message_s)
        )

    def _codec(self, spec: str, costs: Any) -> tuple[str, CodecCosts]:
        from casync import _core

        canonical = _read(f"codecs.{spec}", spec, _core.check_codec)
        found = self._values(f"codecs.{canonical}", costs, {"device": _codec, "host": _codec})
        return canonical, CodecCosts(**found)

    def _model(self, model: str, times: Any) -> Compute:
        where = f"models.{model}"
        if model not in MODELS:
            raise InvalidArgumentError(f"{where} is not known; known: {', '.join(MODELS)}")
        found = self._values(where, times, {"backward": _seconds, "forward": _seconds})
        return Compute(found.get("backward", 0.0), found.get("forward", 0.0))


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{key} {' + '.join(times)} a byte" for key, times in value.items())


def _read(path: str, value: Any, reader: Callable[[Any], T]) -> T:
    try:
        return reader(value)
    except (argparse.ArgumentTypeError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"{path}: {error}") from None


def _is_table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"it must be a table, not {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"it must be a text, not {value!r}")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"it must be a list of texts, not {value!r}")
    return [_text(one) for one in value]


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidArgumentError(f"it must be a whole number from 1 on, not {value!r}")
    return value


def _rate(value: Any) -> float:
    return parse_rate(_text(value))


def _seconds(value: Any) -> float:
    return parse_seconds(_text(value))


def _codec(value: Any) -> CodecSeconds:
    pair = ("encode", "decode")
    if not isinstance(value, dict) or set(value) != set(pair):
        raise InvalidArgumentError(f"it must be a table of {' and '.join(pair)}, not {value!r}")
    times = [time for key in pair for time in _read(key, value[key], _times)]
    return times[0], times[1], times[2], times[3]


def _times(value: Any) -> list[float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidArgumentError(
            f'it must be the times of a call and of a raw byte, as ["2us", "0.2ns"], not {value!r}'
        )
    return [_seconds(time) for time in value]
