"""Rules: which codec a gradient has, by the name of its parameter.

    rules = Rules.of({"*.bias": "none", "embed*": "terngrad(bits=4)", "*": "onebit"})
    rules.codec_of("embed.weight")  # "terngrad(bits=4)"

Pure: a codec is a text here, and whether there is one is for the core to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from casync.errors import InvalidArgumentError

__all__ = ["Rules", "read_table"]

_ALL = "*"
_REGULAR = "re:"  # begins a regular expression


@dataclass(frozen=True)
class Rules:
    """Patterns and their codecs. The first pattern that matches a name decides.

    Patterns are those of a shell (`*`, `?`, `[abc]`); case counts, and `*` matches dots too. One that begins with `re:`
    is a regular expression of Python's for the whole name. A pattern that is the name itself means this one tensor, so
    its codec holds whatever the tensor's size: it becomes `always(codec)`.
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
            if pattern.startswith(_REGULAR):
                try:
                    re.compile(pattern.removeprefix(_REGULAR))
                except re.error as error:
                    raise InvalidArgumentError(f"compression: {pattern!r} is no regular expression: {error}") from None
        if _ALL in patterns[:-1]:
            late = ", ".join(map(repr, patterns[patterns.index(_ALL) + 1 :]))
            raise InvalidArgumentError(
                f"compression: {late} has no effect after '*', because the first pattern that matches decides; put '*' "
                "last"
            )
        return cls(tuple(table.items()))

    def codec_of(self, name: str) -> str:
        """The codec of the parameter `name`. Raises `InvalidArgumentError` if no rule is about it."""
        for pattern, codec in self.pairs:
            if _matches(pattern, name):
                return f"always({codec})" if pattern == name else codec
        table = json.dumps(dict(self.pairs))
        raise InvalidArgumentError(
            f'parameter {name} matches no rule of compression={table}: add one, or a last one for all others, "*"'
        )

    def idle(self, names: Collection[str]) -> dict[str, str]:
        """The patterns that decide for none of `names`, most likely by mistake, and why. A last `*` may be idle."""
        found: dict[str, str] = {}
        left = list(names)
        for pattern, _ in self.pairs:
            if not any(_matches(pattern, name) for name in names):
                found[pattern] = "no parameter has such a name"
            elif pattern != _ALL and not any(_matches(pattern, name) for name in left):
                found[pattern] = "earlier patterns match all that it matches"
            left = [name for name in left if not _matches(pattern, name)]
        return found


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith(_REGULAR):
        return re.fullmatch(pattern.removeprefix(_REGULAR), name) is not None
    return pattern == name or fnmatchcase(name, pattern)


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
