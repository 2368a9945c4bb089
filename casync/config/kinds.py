"""The kinds of values that settings have. Variables, files and arguments of `init()` go through the same check."""

from __future__ import annotations

import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, TypeVar

from casync.config.rules import read_table

__all__ = ["Choice", "Compression", "Count", "Kind", "Level", "Path", "Port", "Seconds", "Switch", "Text", "only_if_on"]

T = TypeVar("T")

_LARGEST = 2**63 - 1
"""Every integer of the core that a setting goes to holds it."""


class Kind(ABC, Generic[T]):
    """How text becomes a value, and which values are allowed. Both raise ValueError, with what is allowed."""

    def read(self, text: str) -> Any:
        """The value that a variable's text stands for, not yet checked."""
        return text

    @abstractmethod
    def check(self, value: Any) -> T:
        """The value as the core takes it."""


@dataclass(frozen=True)
class Count(Kind[int]):
    """A whole number."""

    least: int
    most: int | None = None
    """None: as many as the core's integers hold."""
    why: str = ""
    """Why there are no more."""

    @property
    def _allowed(self) -> str:
        if self.most is None:
            return f"it must be a whole number of at least {self.least}, and less than 2**63"
        return f"it must be a whole number from {self.least} to {self.most}{self.why and f': {self.why}'}"

    def read(self, text: str) -> Any:
        try:
            return int(text)
        except ValueError:
            raise ValueError(self._allowed) from None

    def check(self, value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError(self._allowed) from None
        most = _LARGEST if self.most is None else self.most
        if isinstance(value, bool) or not self.least <= number <= most:
            raise ValueError(self._allowed)
        return number


class Port(Kind[int]):
    """A port of TCP. In an argument 0 is none; a variable that is set names one."""

    def read(self, text: str) -> Any:
        named = Count(1, 65535)
        return named.check(named.read(text))

    def check(self, value: Any) -> int:
        return Count(0, 65535).check(value)


@dataclass(frozen=True)
class Seconds(Kind[float]):
    """A duration. Every wait of CaSync ends."""

    zero_is_unset: bool = False
    """Horovod's 0 means never, which does not exist here."""

    _ALLOWED = "it must be a finite number of seconds above 0"

    def read(self, text: str) -> Any:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(self._ALLOWED) from None
        return None if self.zero_is_unset and value == 0 else value

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(self._ALLOWED)
        seconds = float(value)
        if not 0 < seconds < math.inf:
            raise ValueError(self._ALLOWED)
        return seconds


@dataclass(frozen=True)
class Switch(Kind[bool]):
    """On or off."""

    on: str = "1"
    off: str = "0"

    def read(self, text: str) -> Any:
        if text not in (self.on, self.off):
            raise ValueError(f'it must be "{self.on}" or "{self.off}"')
        return text == self.on

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("it must be True or False")
        return value


@dataclass(frozen=True)
class Choice(Kind[str]):
    """One of some words."""

    words: Sequence[str]

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(f"it must be one of {', '.join(self.words)}")
        return value


@dataclass(frozen=True)
class Level(Choice):
    """A level of the log, in upper or lower case; empty: the program's own."""

    def check(self, value: Any) -> str:
        return super().check(value.upper()) if isinstance(value, str) and value else Text().check(value)


class Text(Kind[str]):
    """Any words."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("it must be a string")
        return value


class Path(Kind[str]):
    """The name of a file."""

    def check(self, value: Any) -> str:
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError("it must be a path")
        path = os.fspath(value)
        if not isinstance(path, str) or "\0" in path:
            raise ValueError("it must be a path of text, without the character NUL")
        return path


class Compression(Kind[Any]):
    """A codec, or codecs by name: a mapping, or the same in JSON. `init()` asks the core whether it knows them."""

    def read(self, text: str) -> Any:
        return read_table(text) if text.lstrip().startswith("{") else text

    def check(self, value: Any) -> str | Mapping[str, Any]:
        if value is None:
            raise ValueError("it must be a codec, or a mapping from patterns to codecs")
        checked: str | Mapping[str, Any] = value
        return checked


def only_if_on(value: T) -> Callable[[str], T | None]:
    """`value` where Horovod's switch is on: any number but 0."""

    def read(text: str) -> T | None:
        try:
            return value if int(text) else None
        except ValueError:
            raise ValueError("it must be a whole number: 0 is off, and any other is on") from None

    return read
