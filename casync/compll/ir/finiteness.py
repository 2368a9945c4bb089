"""Whether a NaN or infinity in the gradient can be missed: what values become of such an element, worked out here."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from casync.compll.ir.graph import Value

__all__ = ["not_finite"]


def not_finite(value: Value, element: float) -> bool:
    """Whether the value certainly is not finite where the gradient's element is this NaN or infinity."""
    try:
        return not math.isfinite(_at(value, element))
    except _Unknown:
        return False


class _Unknown(Exception):
    """The value depends on more than the element."""


_WORKED_OUT: dict[str, Callable[..., float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "neg": operator.neg, "abs": abs,
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "!": operator.not_,
}  # fmt: skip


def _at(value: Value, element: float) -> float:
    if value.op == "gradient":
        return element
    if value.op == "constant":
        return float(value.data)
    if value.op == "choose":
        condition, yes, no = value.operands
        return _at(yes if _at(condition, element) else no, element)
    if value.op not in _WORKED_OUT:
        raise _Unknown
    return float(_WORKED_OUT[value.op](*(_at(operand, element) for operand in value.operands)))
