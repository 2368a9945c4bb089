"""The C++ of what the runtime asks of a file besides encode and decode: sizes, conditions, first values of states."""

from __future__ import annotations

from collections.abc import Sequence

from casync.compll import typed
from casync.compll.cpu.steps import Steps
from casync.compll.ir.choices import Choice, widths_of
from casync.compll.ir.lower import Lowering
from casync.compll.ir.program import Item, Program
from casync.compll.types import Array, Scalar
from casync.errors import NotAvailableError

__all__ = ["bytes_of", "functions", "leaves_of"]

_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i32": 32, "u16": 16, "u8": 8, "i8": 8, "u4": 4, "u2": 2, "u1": 1}


def leaves_of(codec: typed.Codec) -> dict[str, str]:
    """Return the C++ of the values that are read from `facts`, by operation and name."""
    leaves = {"size": "static_cast<std::int32_t>(facts.n)"}
    for name in ("rows", "cols", "step", "world", "merged", "rank", "name", "lr", "momentum", "nesterov"):
        leaves[f"fact {name}"] = f"facts.{name}"
    for index, parameter in enumerate(codec.parameters):
        field = "real" if parameter.element.floating else "whole"
        leaves[f"parameter {parameter.name}"] = f"facts.parameters[{index}].{field}"
    for index, state in enumerate(codec.states):
        if isinstance(state.type, Scalar):
            if state.type.element.name != "float":
                raise NotAvailableError(f"{codec.path}: no code can be generated for a {state.type.element} state yet")
            leaves[f"state {state.name}"] = f"facts.state[{index}][0]"
    return leaves


def bytes_of(item: Item, length: str) -> str:
    """Bytes of an array of a payload, without its count."""
    return f"({length} * {_BITS[item.stored]} + 7) / 8"


def functions(codec: typed.Codec, choice: Choice, rounds: Sequence[Program]) -> str:
    """All of them, for one choice of widths."""
    return "\n".join([
        _fits(codec, choice),
        _function(codec, choice, "bool applies(const Facts& facts)", codec.properties.applies, "true"),
        _function(codec, choice, "std::int64_t unit(const Facts& facts)", codec.properties.unit, "0"),
        _bound(codec, choice, rounds),
        _elements(codec, choice),
        _start(codec, choice),
    ])  # fmt: skip


def _steps(codec: typed.Codec) -> Steps:
    return Steps(leaves_of(codec), codec.path, "")


def _body(signature: str, lines: Sequence[str]) -> str:
    unused = signature.replace("& facts", "& facts [[maybe_unused]]")
    return f"{unused} {{\n{''.join(f'  {line}{chr(10)}' for line in lines)}}}\n"


def _function(
    codec: typed.Codec, choice: Choice, signature: str, expression: typed.Expression | None, otherwise: str
) -> str:
    if expression is None:
        return _body(signature, [f"return {otherwise};"])
    steps = _steps(codec)
    result = steps.single(Lowering(codec, choice).value(expression))
    return _body(signature, [*steps.lines, f"return {result};"])


def _fits(codec: typed.Codec, choice: Choice) -> str:
    """Whether these are the widths that the parameters give."""
    steps, lowering = _steps(codec), Lowering(codec, Choice())
    found = {name: steps.single(lowering.value(width)) for name, width in widths_of(codec).items()}
    wanted = [f"{text} == {choice.widths[name]}" for name, text in found.items()]
    return _body("bool fits(const Facts& facts)", [*steps.lines, f"return {' && '.join(wanted) or 'true'};"])


def _bound(codec: typed.Codec, choice: Choice, rounds: Sequence[Program]) -> str:
    """The most bytes of a unit's payload in a round."""
    lines = []
    for number, program in enumerate(rounds):
        steps = _steps(codec)
        if codec.properties.bound is not None and number == len(rounds) - 1:
            size = steps.single(Lowering(codec, choice).value(codec.properties.bound))
        else:
            sizes = [bytes_of(item, steps.length(item.domain)) if item.domain is not None else
                     bytes_of(item, "1") for item in program.payload]  # fmt: skip
            size = " + ".join(sizes)
        lines += [f"if (round == {number}) {{", *(f"  {line}" for line in steps.lines), f"  return {size};", "}"]
    return _body("std::int64_t bound(const Facts& facts, int round)", [*lines, "return 0;"])


def _elements(codec: typed.Codec, choice: Choice) -> str:
    """Return the function that says how many elements a state has."""
    lines = []
    for number, state in enumerate(codec.states):
        steps = _steps(codec)
        length = "1"
        if isinstance(state.type, Array):
            length = steps.length(Lowering(codec, choice).domain(state.type.length))
        lines += [f"if (state == {number}) {{", *(f"  {line}" for line in steps.lines), f"  return {length};", "}"]
    return _body("std::int64_t elements_of(const Facts& facts, int state [[maybe_unused]])", [*lines, "return 0;"])


def _start(codec: typed.Codec, choice: Choice) -> str:
    """The first value of an element of a state."""
    lines = []
    for number, state in enumerate(codec.states):
        steps = _steps(codec)
        steps.coordinate = "element"
        value = steps.single(Lowering(codec, choice).value(state.initial))
        lines += [f"if (state == {number}) {{", *(f"  {line}" for line in steps.lines), f"  return {value};", "}"]
    signature = "float start(const Facts& facts, int state [[maybe_unused]], std::int64_t element [[maybe_unused]])"
    return _body(signature, [*lines, "return 0;"])
