"""Rules: which codec a gradient has, by the name and the shape of its parameter.

    rules = Rules.of({"* where ndim == 1": "none", "embed*": "terngrad(bits=4)", "*": "onebit"})
    rules.codec_of("embed.weight", (1000, 64))  # "terngrad(bits=4)"

Pure: a codec is a text here, and whether there is one is for the core to say.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from casync.errors import InvalidArgumentError

__all__ = ["Rules", "Shape", "read_table"]

Shape = Sequence[int] | None
"""The shape of a parameter. None means that it is not known."""

_ALL = "*"
_REGULAR = "re:"  # begins a regular expression
_WHERE = " where "  # ends the pattern of the name, and begins the conditions
_NEARLY: Final = re.compile(r"where\s|\swhere", re.IGNORECASE)
_FIELD = r"(?P<field>numel|ndim|shape\[(?P<axis>-?[0-9]+)\])"
_CONDITION: Final = re.compile(_FIELD + r"\s*(?P<compared><=|>=|==|!=|<|>)\s*(?P<number>[0-9]+(?:_[0-9]+)*)")
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """Patterns and their codecs. The first pattern that matches a parameter decides.

    Patterns are those of a shell (`*`, `?`, `[abc]`); case counts, and `*` matches dots too. One that begins with `re:`
    is a regular expression of Python's for the whole name. A pattern that is the name itself means this one tensor, so
    its codec holds whatever the tensor's size: it becomes `always(codec)`. Behind ` where ` a pattern may have
    conditions on the shape, as in `* where ndim == 2 and numel >= 65536`. All of them must hold.
    """

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, table: Mapping[str, str]) -> Rules:
        """The rules of a table, in its order. Raises `InvalidArgumentError` for one that cannot be meant."""
        patterns = list(table)
        if not patterns:
            raise InvalidArgumentError('compression={} has no rule; "*" gives the codec of all parameters')
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern:
                raise InvalidArgumentError(f"compression: {pattern!r} is no pattern for a parameter's name")
            _Pattern.of(pattern)
        if _ALL in patterns[:-1]:
            late = ", ".join(map(repr, patterns[patterns.index(_ALL) + 1 :]))
            raise InvalidArgumentError(
                f"compression: {late} has no effect after '*', because the first pattern that matches decides; put '*' "
                "last"
            )
        return cls(tuple(table.items()))

    def codec_of(self, name: str, shape: Shape = None) -> str:
        """The codec of the parameter `name`. Raises `InvalidArgumentError` if no rule is about it, or if one before
        that is about its shape, which is not known.
        """
        for text, codec in self.pairs:
            found = _Pattern.of(text).matches(name, shape)
            if found is None:
                raise InvalidArgumentError(
                    f"the rule {text!r} of compression= decides by shape, and {name} has none yet when its codec is "
                    "chosen: choose by the name"
                )
            if found:
                return f"always({codec})" if text == name else codec
        raise self._none_for(name)

    def beyond_numel(self) -> list[str]:
        """The patterns with a condition on more than the number of elements."""
        return [text for text, _ in self.pairs if any(one.field != "numel" for one in _Pattern.of(text).conditions)]

    def check(self, name: str, shape: Shape = None) -> None:
        """Raise `InvalidArgumentError` if no rule can be about the parameter."""
        if all(_Pattern.of(text).matches(name, shape) is False for text, _ in self.pairs):
            raise self._none_for(name)

    def _none_for(self, name: str) -> InvalidArgumentError:
        table = json.dumps(dict(self.pairs))
        return InvalidArgumentError(
            f'parameter {name} matches no rule of compression={table}: add one, or a last one for all others, "*"'
        )

    def idle(self, parameters: Mapping[str, Shape]) -> dict[str, str]:
        """The patterns that decide for none of `parameters`, most likely by mistake, and why. A last `*` may be idle.

        Where a shape is not known, its conditions count as met.
        """
        found: dict[str, str] = {}
        left = dict(parameters)
        for text, _ in self.pairs:
            pattern = _Pattern.of(text)
            if not any(pattern.matches(*one) is not False for one in parameters.items()):
                found[text] = f"no parameter has such a name{' and shape' if pattern.conditions else ''}"
            elif text != _ALL and not any(pattern.matches(*one) is not False for one in left.items()):
                found[text] = "earlier patterns match all that it matches"
            left = {name: shape for name, shape in left.items() if not pattern.matches(name, shape)}
        return found


@dataclass(frozen=True)
class _Condition:
    """One number of a shape, compared with a given one."""

    axis: int | None
    """The axis whose extent is compared. None means the number that `field` names, `numel` or `ndim`."""
    field: str
    compared: str
    number: int

    def holds(self, shape: Sequence[int]) -> bool:
        """An axis that the shape does not have meets no condition."""
        if self.axis is None:
            found = math.prod(shape) if self.field == "numel" else len(shape)
        elif -len(shape) <= self.axis < len(shape):
            found = shape[self.axis]
        else:
            return False
        return _COMPARED[self.compared](found, self.number)


@dataclass(frozen=True)
class _Pattern:
    """A pattern, read."""

    text: str
    name: str
    conditions: tuple[_Condition, ...]

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(text: str) -> _Pattern:
        """Raises `InvalidArgumentError` if it cannot be read."""
        name, where, conditions = text.partition(_WHERE)
        if not where and _NEARLY.search(text):
            raise InvalidArgumentError(
                f"compression: {text!r} has no condition: write {_WHERE!r} with a space on both sides, and a condition "
                "behind it, as in '* where ndim == 1'"
            )
        read = tuple(_condition(text, one.strip()) for one in conditions.split(" and ")) if where else ()
        name = name.strip() if where else name
        if name.startswith(_REGULAR):
            try:
                re.compile(name.removeprefix(_REGULAR))
            except re.error as error:
                raise InvalidArgumentError(f"compression: {text!r} is no regular expression: {error}") from None
        return _Pattern(text, name, read)

    def matches(self, name: str, shape: Shape) -> bool | None:
        """None: the shape decides, and is not known."""
        if self.text == name:
            return True
        if not self._names(name):
            return False
        if self.conditions and shape is None:
            return None
        return all(condition.holds(shape or ()) for condition in self.conditions)

    def _names(self, name: str) -> bool:
        if self.name.startswith(_REGULAR):
            return re.fullmatch(self.name.removeprefix(_REGULAR), name) is not None
        return self.name == name or fnmatchcase(name, self.name)


def _condition(pattern: str, text: str) -> _Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"compression: {text!r} in {pattern!r} is no condition: write numel, ndim or shape[0], then one of "
            f"{' '.join(_COMPARED)}, then a number, as in '* where ndim == 2 and numel >= 65536'"
        )
    axis = found["axis"]
    return _Condition(None if axis is None else int(axis), found["field"], found["compared"], int(found["number"]))


def read_table(text: str) -> dict[str, str]:
    """A table from JSON, `{"*.bias": "none", "*": "onebit"}`. Raises ValueError that says what is wrong."""
    try:
        table: dict[str, str] = json.loads(text, object_pairs_hook=_only_once)
    except json.JSONDecodeError as error:
        raise ValueError(f'rules are written in JSON, e.g. {{"*.bias": "none", "*": "onebit"}}: {error}') from None
    for pattern, codec in table.items():
        if not isinstance(codec, str):
            raise ValueError(f"the codec of {pattern!r} is {json.dumps(codec)}, and must be a string")
    return table


def _only_once(pairs: list[tuple[str, str]]) -> dict[str, str]:
    patterns = [pattern for pattern, _ in pairs]
    for pattern in patterns:
        if patterns.count(pattern) > 1:
            raise ValueError(f"there are two rules for {pattern!r}")
    return dict(pairs)
