"""Lengths made of lengths: each with the expression that computes it, and a text by which equal ones are known."""

from __future__ import annotations

from casync.compll import typed
from casync.compll.tree import Span
from casync.compll.types import INT32, UNIT, Length, Scalar, fixed

__all__ = ["COLUMNS", "ROWS", "at_most", "product", "sampled", "value_of"]

_NOWHERE = Span(0, 0, 1, 1)  # nobody wrote these expressions


def _dimension(name: str) -> Length:
    return fixed(name, typed.Read(type=Scalar(INT32), name=name, storage="read-only", span=_NOWHERE, text=name))


ROWS, COLUMNS = _dimension("rows"), _dimension("cols")


def value_of(length: Length) -> typed.Expression:
    """The number that a sized length is."""
    return typed.SizeOf(type=Scalar(INT32), length=length, span=_NOWHERE, text=length.text)


def _operation(name: str, *operands: typed.Expression) -> typed.Expression:
    return typed.Operation(type=Scalar(INT32), name=name, operands=operands, span=_NOWHERE)


def product(left: Length, right: Length) -> Length:
    if (left, right) == (ROWS, COLUMNS):
        return UNIT
    if not left.sized or not right.sized:
        return Length("counted", f"({left.text} * {right.text})")
    return fixed(f"({left.text} * {right.text})", _operation("*", value_of(left), value_of(right)))


def at_most(count: typed.Expression, length: Length) -> Length:
    """min(count, length)."""
    return fixed(f"min({count.text}, {length.text})", _operation("min", count, value_of(length)))


def sampled(length: Length, stride: typed.Expression) -> Length:
    """length / max(1, min(stride, length)): as many as fit wherever the sample begins."""
    one = typed.Constant(type=Scalar(INT32), value=1, span=_NOWHERE)
    step = _operation("max", one, _operation("min", stride, value_of(length)))
    return fixed(f"sample({length.text}, {stride.text})", _operation("/", value_of(length), step))
