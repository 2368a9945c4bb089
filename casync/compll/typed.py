"""The typed tree: what `check_program` makes of a file, and all that a lowering needs to know of it.

Names are resolved, conversions explicit, operators known to the table of operators.py, draws numbered. docs/compll.md
says what each construct means; this file says where it is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from casync.compll.tree import Span
from casync.compll.types import Element, Length, Scalar, Type

__all__ = [
    "Aggregate",
    "Apply",
    "Argument",
    "Assign",
    "CallFunction",
    "Choice",
    "Codec",
    "Constant",
    "Convert",
    "Draw",
    "Drawing",
    "Entry",
    "Expression",
    "Function",
    "FunctionName",
    "GlobalConstant",
    "If",
    "Item",
    "Operation",
    "Parameter",
    "Pick",
    "Properties",
    "Read",
    "Return",
    "Round",
    "SizeOf",
    "StateVariable",
    "Statement",
    "StochasticFloor",
    "Store",
]


# --- expressions


@dataclass(frozen=True, kw_only=True)
class Expression:
    """`local`: the value may differ between ranks. `text`: canonical, where parameters, shape and step decide it."""

    type: Type
    span: Span = field(compare=False, repr=False)
    local: bool = False
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Constant(Expression):
    value: float | int


@dataclass(frozen=True, kw_only=True)
class Read(Expression):
    """A variable. `storage`: argument, variable (of the function), global, constant, state, parameter, or read-only
    (step, rank, ...); the gradient and the payload are arguments.
    """

    name: str
    storage: str


@dataclass(frozen=True, kw_only=True)
class Operation(Expression):
    """A C operator (`+`, `<<`, `!`, `neg`) or an element function (`floor`); operands already have one arithmetic
    type. && and || evaluate both sides: nothing in the language has an effect that could tell.
    """

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, kw_only=True)
class Choice(Expression):
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, kw_only=True)
class Convert(Expression):
    """A conversion to `type`, element by element: saturating, towards zero from float to integer, NaN to 0."""

    operand: Expression


@dataclass(frozen=True, kw_only=True)
class CallFunction(Expression):
    """A call of a function of the file, with scalars."""

    function: Function
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Drawing:
    """Draw number `site` of the file, from the stream that all ranks share or from the rank's own."""

    site: int
    shared: bool


@dataclass(frozen=True, kw_only=True)
class Draw(Expression):
    """A random number of the element's type in [low, high)."""

    drawing: Drawing
    low: Expression
    high: Expression


@dataclass(frozen=True, kw_only=True)
class StochasticFloor(Expression):
    """`floor(operand + random<float>(0, 1))`, in fixed point with 16 fraction bits."""

    drawing: Drawing
    operand: Expression


@dataclass(frozen=True, kw_only=True)
class SizeOf(Expression):
    """The number `length` of elements of `array`, or with `chunks` of its chunks. Without an array it is that of a
    sized length, as the unit's.
    """

    length: Length
    array: Expression | None = None
    chunks: bool = False


@dataclass(frozen=True, kw_only=True)
class Pick(Expression):
    """`array[index]`; the index is clamped to the array, an element of an empty array is 0."""

    array: Expression
    index: Expression


@dataclass(frozen=True, kw_only=True)
class FunctionName(Expression):
    """A function as an operator's argument: one of the file, or an element function where `function` is None."""

    name: str
    function: Function | None


@dataclass(frozen=True, kw_only=True)
class Apply(Expression):
    """An array operator. `types` are its results; `type` is the first. `drawing`: of `sample`."""

    operator: str
    arguments: tuple[Expression, ...]
    types: tuple[Type, ...]
    drawing: Drawing | None = None


# --- statements


@dataclass(frozen=True, kw_only=True)
class Statement:
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True)
class Target:
    """A variable, global, state or output; `type` is what it is from here on, with the length that was assigned."""

    name: str
    storage: str
    type: Type


@dataclass(frozen=True, kw_only=True)
class Assign(Statement):
    """Results of `value` to targets in order; further results of an operator are dropped. Where the element of a target
    is not that of its result, the assignment converts as Convert does.
    """

    targets: tuple[Target, ...]
    value: Expression


@dataclass(frozen=True, kw_only=True)
class Store(Statement):
    """`target[index] = value`, index an array of distinct places or one scalar."""

    target: Target
    index: Expression
    value: Expression


@dataclass(frozen=True, kw_only=True)
class If(Statement):
    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, kw_only=True)
class Return(Statement):
    values: tuple[Expression, ...]


@dataclass(frozen=True, kw_only=True)
class Aggregate(Statement):
    """The end of a round: `variable` becomes the `operation` (sum, mean, max, satsum) of all ranks' values."""

    variable: str
    type: Type
    operation: str


# --- parts of a codec


@dataclass(frozen=True)
class Argument:
    name: str
    type: Scalar


@dataclass(frozen=True)
class Function:
    """A function over scalars. `reads` are the globals, constants and states it needs, calls of others included;
    `private`: it draws from the rank's own stream.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Element, ...]
    body: tuple[Statement, ...]
    reads: frozenset[str]
    private: bool


@dataclass(frozen=True)
class Parameter:
    """`accepted` is a set of values, or with `interval` the two ends."""

    name: str
    element: Element
    default: float | int | None
    accepted: tuple[float | int, ...]
    interval: bool


@dataclass(frozen=True)
class GlobalConstant:
    """Computed once for a tensor, from parameters and shape."""

    name: str
    value: Expression


@dataclass(frozen=True)
class StateVariable:
    """Outlives the call, and is saved under `checkpoint`. A scalar is the tensor's, an array of UNIT length has a slice
    for each unit. `initial` is evaluated per element at first use. `local`: differs between ranks.
    """

    name: str
    type: Type
    initial: Expression
    checkpoint: str
    local: bool


@dataclass(frozen=True)
class Properties:
    """`unit` is None for the whole gradient; `unit_rows` = (shortest, longest) where units are rows. `rounds` has one
    aggregation for each round: "reencode", "gather", "reduce(sum)", ... `pending`: with feedback "own" the state that
    holds what was not sent yet.
    """

    unit: Expression | None
    unit_rows: tuple[int, int] | None
    rounds: tuple[str, ...]
    feedback: str
    pending: str | None
    contractive: bool
    optimizer: str
    bound: Expression | None
    applies: Expression | None


@dataclass(frozen=True)
class Item:
    """One value of the payload: a scalar, or an array of `type.length`. `counted`: its count precedes it, as the first
    array of that length.
    """

    type: Type
    counted: bool


@dataclass(frozen=True)
class Round:
    """Statements up to and without the aggregate. `live`: what earlier rounds computed and is read from here on."""

    statements: tuple[Statement, ...]
    ends: Aggregate | None
    live: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """init, encode, encode_merged, decode or merge. Arguments by their role: `inputs` are read, `output` is set."""

    name: str
    inputs: tuple[str, ...]
    output: str | None
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Codec:
    """A checked file. `payload` is what encode's concat packs; `fixed_size` says whether it has one length per unit.
    `kept`: globals that decode reads as encode left them, equal on all ranks (a lowering may compute them again).
    """

    path: str
    parameters: tuple[Parameter, ...]
    constants: tuple[GlobalConstant, ...]
    globals: tuple[tuple[str, Element, int], ...]
    states: tuple[StateVariable, ...]
    functions: tuple[Function, ...]
    properties: Properties
    init: Entry | None
    encode: Entry
    encode_merged: Entry | None
    decode: Entry | None
    merge: Entry | None
    payload: tuple[Item, ...]
    fixed_size: bool
    kept: tuple[str, ...]
