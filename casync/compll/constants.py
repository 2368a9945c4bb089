"""Numbers as they are written, and expressions of parameters worked out where the file alone decides them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from casync.compll import tree, typed
from casync.compll.diagnostics import fail

__all__ = ["NUMBER_LIMIT", "evaluate", "number"]

NUMBER_LIMIT = {"int": 2**31 - 1, "float": 3.4028234663852886e38}
_MANY = 1000  # combinations of parameter values that are tried


def number(node: tree.Number) -> float | int:
    text = node.text.lower()
    try:
        if text.startswith("0x"):
            return float.fromhex(text) if "p" in text or "." in text else int(text, 16)
        return float(text) if any(mark in text for mark in ".e") else int(text)
    except (ValueError, OverflowError):
        raise fail("number", node, f"{node.text} is not a number of the language", "a decimal or 0x number") from None


def evaluate(expression: typed.Expression, parameters: Mapping[str, typed.Parameter]) -> Iterator[float]:
    """Yield its values over what the parameters accept: each value of a set, both ends of an interval, the default.
    There are none where it depends on more than parameters, or a parameter accepts anything.
    """
    names = sorted(_parameters(expression))
    choices = []
    for name in names:
        parameter = parameters[name]
        if not parameter.accepted:
            return
        default = [] if parameter.default is None else [parameter.default]
        choices.append(sorted({*parameter.accepted, *default}))
    if math.prod(map(len, choices)) > _MANY:
        return
    for values in product(*choices):
        try:
            yield _value(expression, dict(zip(names, values, strict=True)))
        except (_NotHere, ArithmeticError, ValueError):
            return


class _NotHere(Exception):
    """The value depends on something that the file does not say."""


def _parameters(expression: typed.Expression) -> set[str]:
    if isinstance(expression, typed.Read):
        return {expression.name} if expression.storage == "parameter" else set()
    return set().union(*(_parameters(part) for part in _parts(expression)))


def _parts(expression: typed.Expression) -> tuple[typed.Expression, ...]:
    if isinstance(expression, typed.Operation):
        return expression.operands
    if isinstance(expression, typed.Convert):
        return (expression.operand,)
    if isinstance(expression, typed.Choice):
        return (expression.condition, expression.yes, expression.no)
    return ()


_OPERATIONS: dict[str, Callable[..., float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "floor": math.floor,
    "ceil": math.ceil,
}


def _value(expression: typed.Expression, given: Mapping[str, float]) -> float:
    if isinstance(expression, typed.Constant):
        return expression.value
    if isinstance(expression, typed.Read) and expression.storage == "parameter":
        return given[expression.name]
    values = [_value(part, given) for part in _parts(expression)]
    if isinstance(expression, typed.Choice):
        return values[1] if values[0] else values[2]
    if isinstance(expression, typed.Convert):
        return values[0] if expression.type.element.floating else int(values[0])
    if isinstance(expression, typed.Operation) and expression.name == "/":
        quotient = values[0] / values[1]
        return quotient if expression.type.element.floating else int(quotient)
    if isinstance(expression, typed.Operation) and expression.name in _OPERATIONS:
        return _OPERATIONS[expression.name](*values)
    raise _NotHere
