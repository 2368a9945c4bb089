"""Types and shapes: what the checker knows of a value before there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "FLOAT",
    "INT32",
    "UINT1",
    "UINT8",
    "UNIT",
    "Array",
    "Element",
    "Length",
    "Scalar",
    "Type",
    "chunk_count",
    "counted",
    "fixed",
    "known",
]

FLOATS = {"float": 32, "half": 16, "bfloat16": 16}


@dataclass(frozen=True)
class Element:
    """The type in which one value is stored. `name` is canonical: `uint2`, `float`, `uint<params.bits>`. `bits` is None
    where a parameter decides; `width` is then the typed expression.
    """

    name: str
    kind: str  # "uint", "int" or "float"
    bits: int | None
    width: Any = field(default=None, compare=False, repr=False)

    @property
    def floating(self) -> bool:
        return self.kind == "float"

    @property
    def arithmetic(self) -> Element:
        """The type in which it is computed: float32 or int32."""
        return FLOAT if self.floating else INT32

    def __str__(self) -> str:
        return self.name


def known(name: str) -> Element:
    """Return the element type of a plain name of the grammar."""
    if name in FLOATS:
        return Element(name, "float", FLOATS[name])
    kind = name.rstrip("0123456789")
    return Element(name, kind, int(name.removeprefix(kind)))


FLOAT, INT32, UINT1, UINT8 = known("float"), known("int32"), known("uint1"), known("uint8")


@dataclass(frozen=True)
class Length:
    """How many elements an array has. Two arrays go together if their lengths are equal, that is of the same text.

    - unit: as many as the unit of the gradient (`UNIT`)
    - fixed: the value of `expression`, which shape, parameters and step decide: the same on every rank
    - chunks: as many as `of` has chunks of `expression` elements, the last one shorter
    - counted: known only when it is there; its payload begins with the count
    """

    kind: str
    text: str
    expression: Any = field(default=None, compare=False, repr=False)
    of: Length | None = field(default=None, compare=False, repr=False)

    @property
    def sized(self) -> bool:
        """Whether a receiver knows it without being told."""
        return self.of.sized if self.of is not None else self.kind != "counted"

    def __str__(self) -> str:
        """Return the words that follow "an array of"."""
        if self.kind == "counted":
            return "an unknown number of elements"
        return f"{'gradient.size' if self.kind == 'unit' else self.text} elements"


UNIT = Length("unit", "size")


def fixed(text: str, expression: Any = None) -> Length:
    return UNIT if text == UNIT.text else Length("fixed", text, expression)


def chunk_count(of: Length, size: str, expression: Any = None) -> Length:
    return Length("chunks", f"chunks({of.text}, {size})", expression, of)


def counted(number: int) -> Length:
    return Length("counted", f"#{number}")


@dataclass(frozen=True)
class Scalar:
    element: Element

    def __str__(self) -> str:
        return str(self.element)


@dataclass(frozen=True)
class Array:
    """An array, or a view of one: `matrix` = (rows, columns) in row-major order, `chunk` = the number of its chunks."""

    element: Element
    length: Length
    matrix: tuple[Length, Length] | None = None
    chunk: Length | None = None

    @property
    def stars(self) -> int:
        return 1 if self.matrix is None else 2

    def __str__(self) -> str:
        if self.matrix is not None:
            return f"{self.element}** of {self.matrix[0].text} x {self.matrix[1].text}"
        view = f" in chunks of {self.chunk.expression.text}" if self.chunk is not None else ""
        return f"{self.element}* of {self.length}{view}"


Type = Scalar | Array
