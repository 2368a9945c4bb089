"""Where aggregate cuts encode into rounds, and what stays alive over the cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from casync.compll import typed

__all__ = ["cut_into_rounds"]


def cut_into_rounds(statements: Sequence[typed.Statement]) -> tuple[typed.Round, ...]:
    """A round for each aggregate, and one for what follows the last: always one at the end, empty in `init`."""
    parts: list[list[typed.Statement]] = [[]]
    ends: list[typed.Aggregate | None] = []
    for statement in statements:
        if isinstance(statement, typed.Aggregate):
            ends.append(statement)
            parts.append([])
        else:
            parts[-1].append(statement)
    ends.append(None)
    rounds = []
    for number, (part, end) in enumerate(zip(parts, ends, strict=True)):
        before = {name for earlier in parts[:number] for name in _set_by(earlier)}
        received = {ends[number - 1].variable} if number else set()  # type: ignore[union-attr]
        later = [statement for following in parts[number:] for statement in following]
        live = sorted((before & set(_needed(later, ends[number:]))) - received)
        rounds.append(typed.Round(tuple(part), end, tuple(live)))
    return tuple(rounds)


def _set_by(statements: Sequence[typed.Statement]) -> Iterator[str]:
    """Variables and globals; a state is kept anyway."""
    for statement in statements:
        if isinstance(statement, typed.If):
            yield from _set_by(statement.then)
            yield from _set_by(statement.otherwise)
        elif isinstance(statement, (typed.Assign, typed.Store)):
            targets = statement.targets if isinstance(statement, typed.Assign) else (statement.target,)
            yield from (target.name for target in targets if target.storage in ("variable", "global"))


def _needed(statements: Sequence[typed.Statement], ends: Sequence[typed.Aggregate | None]) -> Iterator[str]:
    """Names that are read before a statement at the top level has set them anew."""
    done: set[str] = set()
    for statement in statements:
        yield from set(_read_by(statement)) - done
        if isinstance(statement, typed.Assign):
            done |= {target.name for target in statement.targets}
    yield from {end.variable for end in ends if end is not None} - done


def _read_by(node: Any) -> Iterator[str]:
    if isinstance(node, typed.Read):
        yield node.name
    elif isinstance(node, typed.FunctionName):
        if node.function is not None:
            yield from node.function.reads
    elif isinstance(node, typed.Store):
        yield node.target.name
        yield from _read_by(node.index)
        yield from _read_by(node.value)
    elif isinstance(node, tuple):
        for part in node:
            yield from _read_by(part)
    elif is_dataclass(node) and isinstance(node, (typed.Expression, typed.Statement)):
        if isinstance(node, typed.CallFunction):
            yield from node.function.reads
        for field in fields(node):
            yield from _read_by(getattr(node, field.name))
