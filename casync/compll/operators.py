"""The operators over arrays: one table for the checker, the documentation and the emitters.

An operator is in table 4 of the paper or serves two algorithms; `origin` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from casync.compll import typed
from casync.compll.lengths import COLUMNS, ROWS, at_most, product, sampled
from casync.compll.types import INT32, UNIT, Array, Element, Length, Scalar, Type, chunk_count
from casync.errors import NotAvailableError

__all__ = ["OPERATORS", "TABLE_4", "Operator", "OperatorCall", "register_operator"]

TABLE_4 = "table 4"


class OperatorCall(Protocol):
    """The view that a typing rule has of a call. A method raises the diagnostic where it does not find what it says."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The types of the array arguments, in order."""

    @property
    def scalars(self) -> tuple[typed.Expression, ...]:
        """The scalar arguments, in order."""

    def results(self, elements: tuple[Element, ...]) -> tuple[Element, ...]:
        """Return what the function argument returns for arguments of these elements."""

    def reduces(self, element: Element) -> None:
        """Check that the function argument takes two of `element` and gives one, and that reduce has its start if it
        is needed.
        """

    def same_length(self, index: int, expected: Length, *others: Length) -> None:
        """Check that array argument `index` has one of these lengths."""

    def length(self, scalar: typed.Expression) -> Length:
        """Return the length that a scalar argument stands for."""

    def counted(self) -> Length:
        """Make a length of its own, known only at run time."""

    def matrix(self, index: int) -> tuple[Length, Length]:
        """Check that array argument `index` is a matrix, and return its two lengths."""


Rule = Callable[[OperatorCall], tuple[Type, ...]]


@dataclass(frozen=True)
class Operator:
    """`parameters` are kinds of arguments: array, arrays (one or more), int_array, function, int, scalar; an ending `?`
    means it may be left out. `rule` gives the types of the results; None: the checker knows the operator itself.
    """

    name: str
    parameters: tuple[str, ...]
    usage: str
    doc: str
    origin: tuple[str, ...]
    rule: Rule | None = None


OPERATORS: dict[str, Operator] = {}


def register_operator(name: str, **declaration: object) -> NoReturn:
    """Refuse to add an operator: always raises `NotAvailableError`, which says what to do instead.

    A typing rule alone would let files with the operator pass the check, and none of them could run: the code
    generators have no place yet to which code for it could be given.
    """
    raise NotAvailableError(
        f"operator {name}: CompLL cannot be given operators of your own yet, because code could not be generated for "
        "them. Put what it computes for an element into a function, and give that to map, filter or reduce"
    )


# --- typing rules


def _matrix(element: Element, rows: Length, columns: Length) -> Array:
    return Array(element, product(rows, columns), matrix=(rows, columns))


def _plain(array: Array, element: Element | None = None) -> Array:
    """The array without its view in chunks."""
    return Array(element or array.element, array.length, array.matrix)


def _elementwise(call: OperatorCall) -> tuple[Element, ...]:
    """Arrays of one length; one value per chunk goes to every element of its chunk."""
    first = call.arrays[0]
    for index in range(1, len(call.arrays)):
        call.same_length(index, first.length, *([first.chunk] if first.chunk is not None else []))
    return call.results(tuple(array.element for array in call.arrays))


def _map(call: OperatorCall) -> tuple[Type, ...]:
    return tuple(_plain(call.arrays[0], element) for element in _elementwise(call))


def _filter(call: OperatorCall) -> tuple[Type, ...]:
    _elementwise(call)
    length = call.counted()
    return Array(INT32, length), Array(call.arrays[0].element, length)


def _reduce(call: OperatorCall) -> tuple[Type, ...]:
    (array,) = call.arrays
    element = array.element.arithmetic
    call.reduces(element)
    return (Scalar(element) if array.chunk is None else Array(element, array.chunk),)


def _sort(call: OperatorCall) -> tuple[Type, ...]:
    (array,) = call.arrays
    call.reduces(array.element.arithmetic)
    return (array,)


def _range(call: OperatorCall) -> tuple[Type, ...]:
    return (Array(INT32, call.length(call.scalars[0])),)


def _chunks(call: OperatorCall) -> tuple[Type, ...]:
    (array,), (size,) = call.arrays, call.scalars
    count = chunk_count(array.length, size.text or call.counted().text, size)
    return (Array(array.element, array.length, chunk=count),)


def _matrix_view(call: OperatorCall) -> tuple[Type, ...]:
    (array,) = call.arrays
    call.same_length(0, UNIT)
    return (_matrix(array.element, ROWS, COLUMNS),)


def _transpose(call: OperatorCall) -> tuple[Type, ...]:
    rows, columns = call.matrix(0)
    return (_matrix(call.arrays[0].element, columns, rows),)


def _matmul(call: OperatorCall) -> tuple[Type, ...]:
    rows, inner = call.matrix(0)
    other, columns = call.matrix(1)
    if inner != other:
        call.same_length(1, inner)
    return (_matrix(call.arrays[0].element.arithmetic, rows, columns),)


def _decomp(call: OperatorCall) -> tuple[Type, ...]:
    rows, columns = call.matrix(0)
    order = call.length(call.scalars[0])
    element = call.arrays[0].element.arithmetic
    return _matrix(element, rows, order), _matrix(element, columns, order)


def _orth(call: OperatorCall) -> tuple[Type, ...]:
    call.matrix(0)
    return (_plain(call.arrays[0]),)


def _gather(call: OperatorCall) -> tuple[Type, ...]:
    array, index = call.arrays
    if array.chunk is None:
        return (Array(array.element, index.length),)
    return (Array(array.element, _whole_chunks(array, index, call)),)


def _whole_chunks(array: Array, index: Array, call: OperatorCall) -> Length:
    size = array.chunk.expression if array.chunk is not None else None
    if size is None or size.text is None or not index.length.sized:
        return call.counted()
    return product(call.length(size), index.length)


def _scatter(call: OperatorCall) -> tuple[Type, ...]:
    index, value = call.arrays
    expected = index.length if value.chunk is None else _whole_chunks(value, index, call)
    call.same_length(1, expected)
    return (Array(value.element, call.length(call.scalars[0])),)


def _sample(call: OperatorCall) -> tuple[Type, ...]:
    (array,), (stride,) = call.arrays, call.scalars
    if not array.length.sized or stride.text is None:
        return (Array(array.element, call.counted()),)
    return (Array(array.element, sampled(array.length, stride)),)


def _topk(call: OperatorCall) -> tuple[Type, ...]:
    (array,), (count,) = call.arrays, call.scalars
    sized = array.length.sized and count.text is not None
    length = at_most(count, array.length) if sized else call.counted()
    return Array(INT32, length), Array(array.element, length)


def _hadamard(call: OperatorCall) -> tuple[Type, ...]:
    return (Array(call.arrays[0].element.arithmetic, call.length(call.scalars[0])),)


def _runlength(call: OperatorCall) -> tuple[Type, ...]:
    length = call.counted()
    return Array(call.arrays[0].element, length), Array(INT32, length)


def _repeat(call: OperatorCall) -> tuple[Type, ...]:
    array, _ = call.arrays
    call.same_length(1, array.length)
    return (Array(array.element, call.length(call.scalars[0])),)


for _operator in (
    Operator("sort", ("array", "function"), "sort(G, udf)", "Stable; udf(a, b) returns the one that comes first. Each "
             "chunk of a view by itself.", (TABLE_4,), _sort),
    Operator("filter", ("arrays", "function"), "filter(G, ..., udf)", "Indices and values of G where udf(G[i], ...) is "
             "not 0, in order.", (TABLE_4,), _filter),
    Operator("map", ("arrays", "function"), "map(G, ..., udf)", "udf(G[i], ...) for each i; as many arrays as udf has "
             "results. One value per chunk goes to each element of its chunk.", (TABLE_4,), _map),
    Operator("reduce", ("array", "function", "scalar?"), "reduce(G, udf[, start])", "One value, or one for each chunk "
             "of a view, by the fixed tree; `start` is the neutral value of a function of your own.", (TABLE_4,),
             _reduce),
    Operator("random", (), "random<T>(a, b)", "A number in [a, b) from this rank's own stream.", (TABLE_4,)),
    Operator("concat", (), "compressed = concat(a, ...)", "Packs values and arrays into the payload.", (TABLE_4,)),
    Operator("extract", (), "extract(compressed)", "What concat packed, in the same order.", (TABLE_4,)),
    Operator("decomp", ("array", "int"), "decomp(M, o)", "P and Q with o columns each so that P times Q transposed is "
             "the best approximation of M (LAPACK's SVD; P has orthonormal columns).", (TABLE_4,), _decomp),
    Operator("matmul", ("array", "array"), "matmul(A, B)", "The product of two matrices.", (TABLE_4,), _matmul),
    Operator("aggregate", (), "aggregate(x, sum)", "A statement: x becomes the sum, mean, max or satsum of all ranks' "
             "x. Ends a round.", ("powersgd", "topkc", "thc", "tbq")),
    Operator("shared_random", (), "shared_random<T>(a, b)", "The same number on every rank.", ("powersgd", "thc")),
    Operator("range", ("int",), "range(n)", "0, 1, ..., n - 1; costs no memory.", ("3lc", "adacomp"), _range),
    Operator("chunks", ("array", "int"), "chunks(G, C)", "G in chunks of C elements, the last one shorter; `.count` is "
             "their number.", ("adacomp", "3lc", "topkc"), _chunks),
    Operator("matrix", ("array",), "matrix(G)", "The gradient as rows x cols.", ("powersgd", "acp-sgd (Zhang'23)"),
             _matrix_view),
    Operator("transpose", ("array",), "transpose(M)", "The transposed view.", ("powersgd", "acp-sgd (Zhang'23)"),
             _transpose),
    Operator("orth", ("array",), "orth(M)", "Columns made orthonormal: modified Gram-Schmidt, float32, left to right; "
             "unit vector c takes the place of a column c that vanishes.", ("powersgd", "acp-sgd (Zhang'23)"), _orth),
    Operator("gather", ("array", "int_array"), "gather(G, index)", "G[index[i]] for each i; of a view whole chunks, "
             "padded with 0.", ("dgc", "topkc"), _gather),
    Operator("scatter", ("int_array", "array", "int"), "scatter(index, G, n)", "n zeros, then G[i] at index[i], which "
             "are distinct; of a view whole chunks.", ("dgc", "graddrop", "adacomp"),
             _scatter),
    Operator("sample", ("array", "int"), "sample(G, stride)", "G.size / s elements, each s-th, s = max(1, "
             "min(stride, G.size)), from a start below s that this rank draws.", ("dgc", "graddrop"), _sample),
    Operator("topk", ("array", "int"), "topk(G, k)", "Indices and values of the k largest magnitudes, ties to the "
             "lower index, in order of index.", ("dgc", "graddrop", "topkc"), _topk),
    Operator("hadamard", ("array", "int"), "hadamard(G, n)", "The first n values of the orthonormal Walsh-Hadamard "
             "transform of G, which zeros fill up to a power of two; of a view, of each chunk by itself.",
             ("thc", "drive (Vargaftik'21)"), _hadamard),
    Operator("runlength", ("array", "scalar", "int"), "runlength(G, value, longest)", "Values and lengths of runs: of "
             "`value` at most `longest` elements, of anything else one.", ("3lc", "stc (Sattler'19)"), _runlength),
    Operator("repeat", ("array", "int_array", "int"), "repeat(G, counts, n)", "G[0] counts[0] times, G[1] counts[1] "
             "times, ...: n elements in all, else the payload is corrupt.", ("3lc", "adacomp"), _repeat),
):  # fmt: skip
    OPERATORS[_operator.name] = _operator
