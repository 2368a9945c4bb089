"""The names that stand for a single value in an expression: element functions, reducing functions, read-only values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from casync.compll.types import FLOAT, INT32, UINT1, Element

__all__ = ["CONSTANTS", "ELEMENT_FUNCTIONS", "READ_ONLY", "ElementFunction", "ReadOnly"]


@dataclass(frozen=True)
class ElementFunction:
    """`takes` and `gives`: the type of arguments and of the result; None: float32 if an argument is a float, or else
    int32. `neutral`: what a reduction with it starts from, for the functions that reduce() and sort() know by
    themselves.
    """

    arity: int
    doc: str
    takes: Element | None = None
    gives: Element | None = None
    neutral: float | None = None


ELEMENT_FUNCTIONS = {
    "abs": ElementFunction(1, "magnitude"),
    "floor": ElementFunction(1, "largest whole number that is not greater", FLOAT, FLOAT),
    "ceil": ElementFunction(1, "smallest whole number that is not less", FLOAT, FLOAT),
    "rint": ElementFunction(1, "nearest whole number, ties to even", FLOAT, FLOAT),
    "sqrt": ElementFunction(1, "square root, correctly rounded", FLOAT, FLOAT),
    "exp2": ElementFunction(1, "2 to the power of x; exact for whole x", FLOAT, FLOAT),
    "log2": ElementFunction(1, "logarithm to base 2; exact for powers of 2", FLOAT, FLOAT),
    "cos": ElementFunction(1, "cosine", FLOAT, FLOAT),
    "to_bits": ElementFunction(1, "the 32 bits of a float, sign first", FLOAT, INT32),
    "from_bits": ElementFunction(1, "the float with these 32 bits", INT32, FLOAT),
    "min": ElementFunction(2, "a < b ? a : b"),
    "max": ElementFunction(2, "a > b ? a : b"),
    "smaller": ElementFunction(2, "a < b ? a : b", neutral=math.inf),
    "greater": ElementFunction(2, "a > b ? a : b", neutral=-math.inf),
    "add": ElementFunction(2, "a + b", neutral=0.0),
    "maxAbs": ElementFunction(2, "greater(abs(a), abs(b))", neutral=0.0),
}


@dataclass(frozen=True)
class ReadOnly:
    """`local`: differs between ranks."""

    element: Element
    doc: str
    local: bool = False


READ_ONLY = {
    "size": ReadOnly(INT32, "elements of the unit; of the gradient in `init`, `applies`, states and constants"),
    "rows": ReadOnly(INT32, "the gradient's first dimension"),
    "cols": ReadOnly(INT32, "the product of its other dimensions"),
    "step": ReadOnly(INT32, "how many times this gradient was synchronised before"),
    "world": ReadOnly(INT32, "contributions: the number of ranks, or of hosts; in `decode`, of those in the payload"),
    "rank": ReadOnly(INT32, "this rank", local=True),
    "name": ReadOnly(INT32, "the low 32 bits of the hash of the gradient's name"),
    "lr": ReadOnly(FLOAT, "the optimizer's learning rate for this parameter"),
    "momentum": ReadOnly(FLOAT, "its momentum, which `optimizer = momentum` has switched off there"),
    "nesterov": ReadOnly(UINT1, "whether that is Nesterov's"),
}

CONSTANTS = {"nan": math.nan, "inf": math.inf}
