"""The C++ of single operations: values are named v1, v2, ..., one of a unit spread over sixteen lanes w1, w2, ...

The text uses the operations of codec/cpu/kernels/{lanes,integers}.hpp and operators/{elementary,rounding}.hpp, which
are overloaded for single values and lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from casync.compll.ir.graph import BIT, FLOAT, INT, Value

__all__ = ["LANE_TYPES", "POINTERS", "SCALAR_TYPES", "constant", "is_zero", "name_of", "text_of"]

LANE_TYPES = {FLOAT: "F32x16", INT: "I32x16", BIT: "Mask16"}
SCALAR_TYPES = {FLOAT: "float", INT: "std::int32_t", BIT: "bool"}
POINTERS = {"f32": "float", "i32": "std::int32_t", "u16": "std::uint16_t", "u8": "std::uint8_t", "i8": "std::int8_t",
            "f16": "Narrow<Float16>", "bf16": "Narrow<BFloat16>"}  # fmt: skip

_CALLS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder", "neg": "minus", "add": "add",
    "<": "less", ">": "greater", "<=": "at_most", ">=": "at_least", "==": "equal", "!=": "not_equal",
    "&&": "both", "||": "either", "!": "negate", "&": "bit_and", "|": "bit_or", "^": "bit_xor", "~": "bit_not",
    "<<": "shift_left", ">>": "shift_right", "choose": "choose", "ceil_div": "ceil_div",
    "abs": "magnitude", "min": "smaller", "smaller": "smaller", "max": "larger", "greater": "larger",
    "maxAbs": "larger_magnitude", "floor": "round_down", "ceil": "round_up", "rint": "round_nearest",
    "sqrt": "square_root", "exp2": "exp2", "log2": "log2", "cos": "cosine",
    "to_bits": "bit_pattern", "from_bits": "of_pattern",
    "to_float": "to_float", "to_int": "to_int", "to_bit": "to_bit",
    "to_half": "to_half", "to_bfloat16": "to_bfloat16",
}  # fmt: skip
_READS = {
    "parameter": "parameters", "fact": "facts", "size": "size", "state": "states", "field": "fields",
}  # fmt: skip


def name_of(value: Value, wide: bool) -> str:
    return f"w{value.number}" if wide and not value.lanes else f"v{value.number}"


def text_of(value: Value, wide: bool, leaf: Callable[[Value, bool], str]) -> str:
    """The expression that computes it from the names of its operands; `leaf` knows what is read from outside."""
    if value.op == "constant":
        return constant(value)
    operands = [name_of(operand, wide) for operand in value.operands]
    if value.op == "same":
        return operands[0]
    if value.op == "saturate":
        return f"saturate({operands[0]}, {value.data[0]}, {value.data[1]})"
    if value.op == "stochastic_floor":
        site, least, most = value.data
        return f"stochastic_floor({operands[0]}, r{site}, {least}.0F, {most}.0F)"
    if value.op == "choose" and value.kind == FLOAT:
        _, yes, no = value.operands
        if is_zero(no):
            return f"keep({operands[0]}, {operands[1]})"
        if is_zero(yes):
            return f"drop({operands[0]}, {operands[2]})"
    if value.op in ("/", "%") and value.kind == INT and value.lanes and value.operands[1].op == "constant":
        by = value.operands[1].data
        if by > 0:
            return f"{'divide_by' if value.op == '/' else 'remainder_by'}<{by}>({operands[0]})"
    call = _CALLS.get(value.op)
    return leaf(value, wide) if call is None else f"{call}({', '.join(operands)})"


def is_zero(value: Value) -> bool:
    return value.op == "constant" and math.copysign(1, value.data) * (value.data == 0) == 1


def constant(value: Value) -> str:
    if value.kind != FLOAT:
        return str(int(value.data)) if value.kind == INT else str(bool(value.data)).lower()
    number = float(value.data)
    if number != number:
        return '__builtin_nanf("")'
    if number in (math.inf, -math.inf):
        return f"{'-' if number < 0 else ''}__builtin_inff()"
    return f"{number.hex()}F"
