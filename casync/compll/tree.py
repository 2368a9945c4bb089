"""The syntax tree of a CompLL file: what was written, nothing inferred.

Every node knows its span; spans and comments do not take part in comparisons, so two texts that differ in layout alone
have equal trees. Parentheses leave no node: the tree's shape says what they said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

__all__ = [
    "Assign",
    "Binary",
    "Call",
    "CallStatement",
    "Cast",
    "Choice",
    "Comment",
    "Declare",
    "Limits",
    "Draw",
    "Expression",
    "Field",
    "Function",
    "Global",
    "If",
    "Index",
    "Item",
    "Member",
    "Name",
    "Node",
    "Number",
    "ParamBlock",
    "Program",
    "Properties",
    "Property",
    "Return",
    "Span",
    "State",
    "Statement",
    "Target",
    "TypeName",
    "Unary",
    "Variable",
    "walk",
]


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of the text; `line` and `column` of the first one, from 1."""

    start: int
    end: int
    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Node:
    span: Span = field(compare=False, repr=False)


# --- expressions


class Expression(Node):
    """A value: one of the classes below."""


@dataclass(frozen=True)
class Number(Expression):
    """`text` as it was written: `7`, `0xff`, `0.5`, `1e-3`, `0x1p-100`."""

    text: str


@dataclass(frozen=True)
class Name(Expression):
    name: str


@dataclass(frozen=True)
class Member(Expression):
    """`of.name`: a parameter, or `.size`, `.rows`, `.cols` of an array."""

    of: Expression
    name: str


@dataclass(frozen=True)
class Index(Expression):
    of: Expression
    at: Expression


@dataclass(frozen=True)
class Call(Expression):
    """An operator, an element function or a function of the file."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Draw(Expression):
    """`random<T>(low, high)` or `shared_random<T>(low, high)`."""

    function: str
    type: TypeName
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Unary(Expression):
    operator: str
    operand: Expression


@dataclass(frozen=True)
class Cast(Expression):
    type: TypeName
    operand: Expression


@dataclass(frozen=True)
class Binary(Expression):
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Choice(Expression):
    """`condition ? yes : no`."""

    condition: Expression
    yes: Expression
    no: Expression


# --- types and statements


@dataclass(frozen=True)
class TypeName(Node):
    """`float`, `uint2*`, `float**`, `uint<params.bits>*`: element, its width if that is an expression, and stars."""

    element: str
    width: Expression | None = None
    stars: int = 0


class Statement(Node):
    """A statement: one of the classes below."""


@dataclass(frozen=True)
class Target(Node):
    """A place that an assignment fills: `name` or `name[at]`."""

    name: str
    at: Expression | None = None


@dataclass(frozen=True)
class Variable(Node):
    """A name with its type, in a declaration or as an argument. `type` is a str for the parameter block's name."""

    type: TypeName | str
    name: str


@dataclass(frozen=True)
class Declare(Statement):
    """`float a, uint2* b = value;`: new names, which receive the results of `value` in order."""

    variables: tuple[Variable, ...]
    value: Expression | None


@dataclass(frozen=True)
class Assign(Statement):
    targets: tuple[Target, ...]
    value: Expression


@dataclass(frozen=True)
class CallStatement(Statement):
    """A call for its effect; `aggregate` is the only one."""

    call: Call


@dataclass(frozen=True)
class If(Statement):
    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Return(Statement):
    values: tuple[Expression, ...]


# --- items of a file


class Item(Node):
    """One item of the list that a file is: one of the classes below."""


@dataclass(frozen=True)
class Limits(Node):
    """Accepted values of a parameter: `in {2, 4, 8}`, or `in [0, 1]` with both ends."""

    values: tuple[Expression, ...]
    interval: bool


@dataclass(frozen=True)
class Field(Node):
    type: TypeName
    name: str
    default: Expression | None
    domain: Limits | None


@dataclass(frozen=True)
class ParamBlock(Item):
    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Property(Node):
    name: str
    value: Expression


@dataclass(frozen=True)
class Properties(Item):
    entries: tuple[Property, ...]


@dataclass(frozen=True)
class State(Item):
    """`state TYPE name[length][columns] = initial as "checkpoint name";`."""

    type: TypeName
    name: str
    lengths: tuple[Expression, ...]
    initial: Expression
    checkpoint: str | None


@dataclass(frozen=True)
class Global(Item):
    """`float min, max;`, or with a value a constant of the tensor: `int32 r = min(params.rank, rows);`."""

    type: TypeName
    names: tuple[str, ...]
    value: Expression | None


@dataclass(frozen=True)
class Function(Item):
    """`results` is empty for void. encode, decode and the like are functions with a known name."""

    results: tuple[TypeName, ...]
    name: str
    arguments: tuple[Variable, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Comment:
    """`// ...` or `/* ... */`, as written."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Program:
    """A file: its items in order. `text` and `path` are there for diagnostics, `comments` for the formatter."""

    items: tuple[Item, ...]
    comments: tuple[Comment, ...] = field(compare=False)
    text: str = field(compare=False, repr=False)
    path: str = field(compare=False)


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for part in fields(node):
        value = getattr(node, part.name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Node):
                yield from walk(child)
