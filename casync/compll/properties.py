"""The properties block: what the runtime must know of a codec, each entry checked for sense."""

from __future__ import annotations

from casync.compll import tree, typed
from casync.compll.constants import evaluate
from casync.compll.diagnostics import fail
from casync.compll.expressions import Expressions
from casync.compll.scope import File, Scope
from casync.compll.statements import AGGREGATIONS
from casync.compll.types import UNIT, Array

__all__ = ["DEFAULT_UNIT", "check_properties", "whole_unit"]

DEFAULT_UNIT = 4096

_WORDS = {
    "contractive": ("no", "yes"),
    "optimizer": ("any", "momentum"),
}
_NAMES = ("unit", "aggregation", "feedback", *_WORDS, "bound", "applies")


def whole_unit(block: tree.Properties | None) -> bool:
    entries = block.entries if block is not None else ()
    return any(entry.name == "unit" and _word(entry.value) == "whole" for entry in entries)


def check_properties(block: tree.Properties | None, file: File, aggregated: tuple[str, ...]) -> typed.Properties:
    """`aggregated`: the operations of encode's aggregates, one round each before the payload's."""
    entries: dict[str, tree.Property] = {}
    for entry in block.entries if block is not None else ():
        if entry.name not in _NAMES:
            raise fail("property-name", entry, f"no property `{entry.name}`", ", ".join(_NAMES))
        if entry.name in entries:
            raise fail("redefined", entry, f"`{entry.name}` is there already", "each property once")
        entries[entry.name] = entry
    expressions = Expressions(Scope(file, "constant", params=file.params_name and "params"))
    words = {name: _one_of(entries.get(name), name, allowed) for name, allowed in _WORDS.items()}
    feedback, pending = _feedback(entries.get("feedback"), file)
    if feedback == "wrapper" and words["contractive"] != "yes":
        raise fail(
            "feedback",
            entries["feedback"],
            "error feedback around a codec that is not contractive diverges",
            "`contractive = yes` (decoding never ends further from x than 0 is), or feedback = own(STATE) or none",
        )
    unit, rows = _unit(entries.get("unit"), expressions)
    bound, applies = entries.get("bound"), entries.get("applies")
    return typed.Properties(
        unit=unit,
        unit_rows=rows,
        rounds=(*(f"reduce({operation})" for operation in aggregated), _aggregation(entries.get("aggregation"))),
        feedback=feedback,
        pending=pending,
        contractive=words["contractive"] == "yes",
        optimizer=words["optimizer"],
        bound=None if bound is None else expressions.whole(bound.value),
        applies=None if applies is None else expressions.condition(applies.value),
    )


def _word(node: tree.Expression) -> str | None:
    return node.name if isinstance(node, tree.Name) else None


def _one_of(entry: tree.Property | None, name: str, allowed: tuple[str, ...]) -> str:
    word = allowed[0] if entry is None else _word(entry.value)
    if word not in allowed:
        assert entry is not None
        raise fail("property-value", entry.value, f"not a value of `{name}`", " or ".join(allowed))
    return word


def _feedback(entry: tree.Property | None, file: File) -> tuple[str, str | None]:
    """Return the kind of feedback and, with `own(STATE)`, the state that holds what was not sent."""
    if entry is None:
        return "none", None
    value = entry.value
    if (word := _word(value)) in ("none", "wrapper"):
        return str(word), None
    if isinstance(value, tree.Call) and value.function == "own" and len(value.arguments) == 1:
        name = _word(value.arguments[0])
        state = file.variables.get(name) if name is not None else None
        if state is not None and isinstance(state.declared, Array) and state.declared.length == UNIT:
            return "own", state.name
        raise fail("feedback", value, "what was not sent is kept per element", "own(STATE), a state of [size]")
    raise fail("property-value", value, "not a value of `feedback`", "none, wrapper or own(STATE)")


def _aggregation(entry: tree.Property | None) -> str:
    if entry is None:
        return "reencode"
    value = entry.value
    if _word(value) in ("reencode", "gather"):
        return str(_word(value))
    if isinstance(value, tree.Call) and value.function == "reduce" and len(value.arguments) == 1:
        if (operation := _word(value.arguments[0])) in AGGREGATIONS:
            return f"reduce({operation})"
    raise fail("property-value", value, "not an aggregation", f"reencode, gather or reduce({' | '.join(AGGREGATIONS)})")


def _unit(
    entry: tree.Property | None, expressions: Expressions
) -> tuple[typed.Expression | None, tuple[int, int] | None]:
    if entry is None:
        return expressions.whole(tree.Number(str(DEFAULT_UNIT), span=tree.Span(0, 0, 1, 1))), None
    value = entry.value
    if _word(value) == "whole":
        return None, None
    if isinstance(value, tree.Call) and value.function == "rows":
        ends = [argument.text if isinstance(argument, tree.Number) else "" for argument in value.arguments]
        if len(ends) != 2 or not all(end.isdecimal() for end in ends) or not 0 < int(ends[0]) <= int(ends[1]):
            raise fail("property-value", value, "not a pair of row lengths", "rows(shortest, longest)")
        return None, (int(ends[0]), int(ends[1]))
    unit = expressions.whole(value)
    if unit.text is None or any(size < 1 for size in evaluate(unit, expressions.file.parameters)):
        raise fail("property-value", value, "not a unit", "a positive number, whole or rows(shortest, longest)")
    return unit, None
