"""An interpreter of the typed tree, one element at a time, written from docs/compll.md: slow and plain on purpose."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll import check_program, parse, typed
from casync.compll.functions import ELEMENT_FUNCTIONS
from casync.compll.library import library_files
from casync.compll.types import FLOAT, Array, Element, Scalar

F = np.float32
ROOT = Path(__file__).parents[3]
FILES = library_files()


class Values(list):
    """An array; `chunk` > 0 marks a view in chunks, `shape` a matrix."""

    chunk = 0
    shape: tuple[int, int] | None = None


def wrap(value: int) -> int:
    return (int(value) + 2**31) % 2**32 - 2**31


def convert(value: Any, element: Element, bits: int) -> Any:
    if element.name == "float":
        return F(value)
    if element.name == "half":
        return F(np.float16(value))
    if element.name == "bfloat16":
        whole = int(np.array(value, F).view(np.uint32))
        return np.array((whole + 0x7FFF + (whole >> 16 & 1)) >> 16 << 16, np.uint32).view(F)[()]
    low, high = (0, 2**bits - 1) if element.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if math.isnan(value):
        return 0
    return int(max(low, min(high, value)))


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else int(math.copysign(abs(a) // abs(b), a * b)) if a else 0


def divide(a: Any, b: Any) -> Any:
    return F(a) / F(b) if isinstance(a, np.floating) else truncated(a, b)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_},
    "/": divide,
    "%": lambda a, b: a - truncated(a, b) * b if b else 0,
    "<<": lambda a, b: a << b % 32,
    ">>": lambda a, b: a >> b % 32,
    "^": lambda a, b: a ^ b,
    "~": lambda a: ~a,
    "neg": lambda a: -a,
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
    "!": lambda a: not a,
    "abs": abs,
    **{name: getattr(np, name) for name in ("floor", "ceil", "rint", "sqrt", "exp2", "log2", "cos")},
    "to_bits": lambda a: int(np.asarray(a, F).view(np.int32)),
    "from_bits": lambda a: np.asarray(a, np.int32).view(F)[()],
    "min": lambda a, b: a if a < b else b,
    "max": lambda a, b: a if a > b else b,
    "smaller": lambda a, b: a if a < b else b,
    "greater": lambda a, b: a if a > b else b,
    "add": lambda a, b: a + b,
    "maxAbs": lambda a, b: abs(a) if abs(a) > abs(b) else abs(b),
}


@functools.cache
def philox(counter: tuple[int, ...], key: int) -> tuple[int, ...]:
    c, k0, k1 = list(counter), key & 0xFFFFFFFF, key >> 32
    for _ in range(7):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(c)


class Machine:
    """One rank and one unit, which begins at the coordinate `first`."""

    operations = OPERATIONS

    def __init__(self, file: str | Path, shape: tuple[int, int], **given: Any) -> None:
        path = file if isinstance(file, Path) else FILES[file]
        self.codec = check_program(parse(path.read_text(encoding="utf-8"), path.name))
        self.hash, self.first = given.pop("name_hash", 0), given.pop("first", 0)
        size = shape[0] * shape[1]
        self.read_only = dict(size=size, rows=shape[0], cols=shape[1], step=5000, world=1, rank=0, name=0)
        self.read_only |= dict(lr=F(0.1), momentum=F(0.9), nesterov=0)
        self.read_only |= {key: given.pop(key) for key in list(given) if key in self.read_only}
        self.params = {p.name: convert(p.default, p.element, p.element.bits or 0) for p in self.codec.parameters}
        self.params |= given
        self.env: dict[str, Any] = {}
        self.coordinate = 0
        for constant in self.codec.constants:
            self.env[constant.name] = self.value(constant.value)
        for state in self.codec.states:
            self.env[state.name] = self.initial(state)

    def initial(self, state: typed.StateVariable) -> Any:
        if isinstance(state.type, Scalar):
            return self.value(state.initial)
        lengths = state.type.matrix or (state.type.length,)
        counts = [self.length(length) for length in lengths]
        out = Values()
        for i in range(math.prod(counts)):
            self.coordinate = i
            out.append(self.value(state.initial))
        self.coordinate = 0
        out.shape = (counts[0], counts[1]) if len(counts) == 2 else None
        return out

    def bits(self, element: Element) -> int:
        return element.bits if element.bits is not None else int(self.value(element.width))

    def to(self, value: Any, element: Element) -> Any:
        bits = self.bits(element)
        if not isinstance(value, Values):
            return convert(value, element, bits)
        out = Values(convert(one, element, bits) for one in value)
        out.chunk, out.shape = value.chunk, value.shape
        return out

    # --- expressions

    def value(self, node: typed.Expression) -> Any:
        return getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _constant(self, node: typed.Constant) -> Any:
        return F(node.value) if node.type.element.floating else node.value

    def _read(self, node: typed.Read) -> Any:
        if node.storage == "parameter":
            return self.params[node.name]
        return self.read_only[node.name] if node.storage == "read-only" else self.env[node.name]

    def _operation(self, node: typed.Operation) -> Any:
        result = self.operations[node.name](*map(self.value, node.operands))
        return F(result) if node.type.element.floating else wrap(result)

    def _choice(self, node: typed.Choice) -> Any:
        return self.value(node.yes if self.value(node.condition) else node.no)

    def _convert(self, node: typed.Convert) -> Any:
        return self.to(self.value(node.operand), node.type.element)

    def _callfunction(self, node: typed.CallFunction) -> Any:
        return self.call(node.function, [self.value(argument) for argument in node.arguments])[0]

    def _sizeof(self, node: typed.SizeOf) -> Any:
        if node.array is None:
            return self.length(node.length)
        array = self.value(node.array)
        return -(-len(array) // array.chunk) if node.chunks else len(array)

    def _pick(self, node: typed.Pick) -> Any:
        array, index = self.value(node.array), self.value(node.index)
        return array[max(0, min(len(array) - 1, index))] if array else 0

    def random_bits(self, drawing: typed.Drawing) -> int:
        c = self.first + self.coordinate
        low = 0xFFFFF if drawing.shared else self.read_only["rank"] * 2
        stream = low + (drawing.site << 20)
        words = philox((c // 128 * 16 + c % 16, self.read_only["step"], 0, stream), self.hash)
        word = words[c // 16 % 8 // 2]
        return word >> 16 if c // 16 % 2 else word & 0xFFFF

    def _draw(self, node: typed.Draw) -> Any:
        low, high, r = self.value(node.low), self.value(node.high), self.random_bits(node.drawing)
        if node.type.element.floating:
            return F(low + (high - low) * F((r + 0.5) / 65536))
        return low + ((high - low) * r >> 16)

    def _stochasticfloor(self, node: typed.StochasticFloor) -> Any:
        scaled = F(self.value(node.operand)) * F(65536)
        return F((int(np.rint(scaled)) + self.random_bits(node.drawing)) >> 16)

    def call(self, function: typed.Function | None, arguments: Sequence[Any], name: str = "") -> tuple[Any, ...]:
        if function is None:
            if ELEMENT_FUNCTIONS[name].takes == FLOAT:
                arguments = [F(argument) for argument in arguments]
            return (self.operations[name](*arguments),)
        saved = dict(self.env)
        for argument, given in zip(function.arguments, arguments, strict=True):
            self.env[argument.name] = self.to(given, argument.type.element)
        returned = self.statements(function.body)
        self.env = saved
        assert returned is not None
        return returned

    # --- operators

    def _apply(self, node: typed.Apply) -> Any:
        return self.several(node)[0]

    def several(self, node: typed.Apply) -> tuple[Any, ...]:
        given = [a if isinstance(a, typed.FunctionName) else self.value(a) for a in node.arguments]
        drawing = () if node.drawing is None else (self.random_bits(node.drawing),)
        results = getattr(self, f"op_{node.operator}")(*given, *drawing)
        return tuple(self.to(result, type_.element) for result, type_ in zip(results, node.types, strict=True))

    def rows(self, arrays: Sequence[Values]) -> list[tuple[Any, ...]]:
        """Element i of each array; of an array with a value per chunk that of the chunk."""
        n, chunk = len(arrays[0]), arrays[0].chunk
        return [tuple(a[i] if len(a) == n else a[i // chunk] for a in arrays) for i in range(n)]

    def each(self, arrays: Sequence[Values], udf: typed.FunctionName) -> list[tuple[Any, ...]]:
        results = []
        for i, row in enumerate(self.rows(arrays)):
            self.coordinate = i
            results.append(self.call(udf.function, row, udf.name))
        self.coordinate = 0
        return results

    def op_map(self, *given: Any) -> tuple[Values, ...]:
        *arrays, udf = given
        results = self.each(arrays, udf)
        several = 1 if udf.function is None else len(udf.function.results)
        columns = [Values(column) for column in zip(*results, strict=True)] or [Values() for _ in range(several)]
        for column in columns:
            column.shape = arrays[0].shape
        return tuple(columns)

    def op_filter(self, *given: Any) -> tuple[Values, Values]:
        *arrays, udf = given
        kept = [i for i, (flag,) in enumerate(self.each(arrays, udf)) if flag]
        return Values(kept), Values(arrays[0][i] for i in kept)

    def op_reduce(self, array: Values, udf: typed.FunctionName, *start: Any) -> tuple[Any]:
        if array.chunk:
            pieces = [array[i : i + array.chunk] for i in range(0, len(array), array.chunk)]
            return (Values(self.tree(piece, udf, *start) for piece in pieces),)
        return (self.tree(array, udf, *start),)

    def tree(self, values: Sequence[Any], udf: typed.FunctionName, *start: Any) -> Any:
        """Blocks of 1024, lanes of 16, lanes folded 8, 4, 2, 1, blocks in order."""
        whole = bool(values) and isinstance(values[0], int)
        neutral: Any = start[0] if start else ELEMENT_FUNCTIONS[udf.name].neutral
        if udf.name in ("smaller", "greater") and values:
            neutral = values[0]
        total = neutral = int(neutral) if whole else F(neutral)
        for begin in range(0, len(values), 1024):
            lanes = [neutral] * 16
            for i, value in enumerate(values[begin : begin + 1024]):
                lanes[i % 16] = self.call(udf.function, (value, lanes[i % 16]), udf.name)[0]
            for half in (8, 4, 2, 1):
                lanes = [self.call(udf.function, (lanes[j], lanes[j + half]), udf.name)[0] for j in range(half)]
            total = self.call(udf.function, (total, lanes[0]), udf.name)[0]
        return total

    def op_sort(self, array: Values, udf: typed.FunctionName) -> tuple[Values]:
        if udf.function is None:  # of zeros -0 is the smaller one
            return (Values(sorted(array, key=lambda a: (a, math.copysign(1, a)), reverse=udf.name == "greater")),)

        def order(a: Any, b: Any) -> int:
            return 0 if a == b else -1 if self.call(udf.function, (a, b), udf.name)[0] == a else 1

        return (Values(sorted(array, key=functools.cmp_to_key(order))),)

    def op_range(self, n: int) -> tuple[Values]:
        return (Values(range(n)),)

    def op_chunks(self, array: Values, size: int) -> tuple[Values]:
        view = Values(array)
        view.chunk = max(1, size)
        return (view,)

    def op_sample(self, array: Values, stride: int, r: int) -> tuple[Values]:
        step = max(1, min(stride, len(array)))
        return (Values(array[step * r >> 16 :: step][: len(array) // step]),)

    def op_topk(self, array: Values, k: int) -> tuple[Values, Values]:
        best = sorted(sorted(range(len(array)), key=lambda i: -abs(array[i]))[:k])
        return Values(best), Values(array[i] for i in best)

    def op_gather(self, array: Values, index: Values) -> tuple[Values]:
        size = array.chunk or 1
        padded = [*array, *[F(0)] * size]
        return (Values(padded[i * size + j] for i in index for j in range(size)),)

    def op_scatter(self, index: Values, array: Values, n: int) -> tuple[Values]:
        size = array.chunk or 1
        out = Values([F(0)] * (n + size))
        for place, i in enumerate(index):
            out[i * size : (i + 1) * size] = array[place * size : (place + 1) * size]
        del out[n:]
        return (out,)

    def op_runlength(self, array: Values, value: Any, longest: int) -> tuple[Values, Values]:
        values, lengths = Values(), Values()
        for one in array:
            if values and one == value == values[-1] and lengths[-1] < longest:
                lengths[-1] += 1
            else:
                values.append(one)
                lengths.append(1)
        return values, lengths

    def op_repeat(self, array: Values, counts: Values, n: int) -> tuple[Values]:
        out = Values(one for one, count in zip(array, counts, strict=True) for _ in range(count))
        assert len(out) == n
        return (out,)

    def op_hadamard(self, array: Values, n: int) -> tuple[Values]:
        chunk = array.chunk or max(1, len(array))
        chunks = [self.rotated(array[begin : begin + chunk]) for begin in range(0, max(1, len(array)), chunk)]
        return (Values([one for chunk in chunks for one in chunk][:n]),)

    def rotated(self, array: Sequence[Any]) -> list[Any]:
        size = 1 << max(0, len(array) - 1).bit_length()
        x = np.array([*array, *[0] * (size - len(array))], F)
        for h in (1 << j for j in range(size.bit_length() - 1)):
            x = np.array([[a + b, a - b] for a, b in [(x.reshape(-1, 2, h)[:, 0], x.reshape(-1, 2, h)[:, 1])]][0])
            x = x.transpose(1, 0, 2).reshape(-1)
        return [F(one) for one in x / np.sqrt(F(size))]

    def op_matrix(self, array: Values) -> tuple[Values]:
        return self.matrix(array, (self.read_only["rows"], self.read_only["cols"]))

    def op_transpose(self, array: Values) -> tuple[Values]:
        assert array.shape is not None
        return self.matrix(np.array(array, F).reshape(array.shape).T.ravel(), array.shape[::-1])

    def op_matmul(self, left: Values, right: Values) -> tuple[Values]:
        product = np.array(left, F).reshape(left.shape) @ np.array(right, F).reshape(right.shape)
        return self.matrix(product.ravel(), product.shape)

    def op_orth(self, array: Values) -> tuple[Values]:
        assert array.shape is not None
        return self.matrix(np.linalg.qr(np.array(array, F).reshape(array.shape))[0].ravel(), array.shape)

    def matrix(self, values: Any, shape: tuple[int, int]) -> tuple[Values]:
        out = Values(F(value) for value in values)
        out.shape = shape
        return (out,)

    # --- statements and payloads

    def statements(self, body: Sequence[typed.Statement]) -> tuple[Any, ...] | None:
        for statement in body:
            if isinstance(statement, typed.Return):
                return tuple(map(self.value, statement.values))
            if isinstance(statement, typed.If):
                side = statement.then if self.value(statement.condition) else statement.otherwise
                returned = self.statements(side)
                if returned is not None:
                    return returned
            elif isinstance(statement, typed.Store):
                self.store(statement)
            else:
                assert isinstance(statement, typed.Assign)
                self.assign(statement)
        return None

    def assign(self, node: typed.Assign) -> None:
        if isinstance(node.value, typed.Apply) and node.value.operator == "concat":
            self.packed = self.pack([self.value(argument) for argument in node.value.arguments])
            return
        extracts = isinstance(node.value, typed.Apply) and node.value.operator == "extract"
        if extracts:
            results: Sequence[Any] = self.unpack(self.packed)
        else:
            results = self.several(node.value) if isinstance(node.value, typed.Apply) else (self.value(node.value),)
        for target, result in zip(node.targets, results, strict=False):
            self.env[target.name] = self.to(result, target.type.element)

    def store(self, node: typed.Store) -> None:
        array, index, value = Values(self.env[node.target.name]), self.value(node.index), self.value(node.value)
        for place, i in enumerate(index if isinstance(index, Values) else [index]):
            array[i] = value[place] if isinstance(value, Values) else value
        self.env[node.target.name] = array

    def pack(self, values: Sequence[Any]) -> bytes:
        out = b""
        for item, value in zip(self.codec.payload, values, strict=True):
            array = value if isinstance(value, Values) else [value]
            if item.counted:
                out += len(array).to_bytes(4, "little")
            bits = self.bits(item.type.element)
            kind = {"float": "<f4", "half": "<f2"}.get(item.type.element.name)
            if kind is not None:
                out += np.array(array, kind).tobytes()
            else:
                width = bits if isinstance(item.type, Array) else max(bits, 8)
                codes = np.array(array, np.int64)[:, None] & (1 << bits) - 1
                out += np.packbits((codes >> np.arange(width) & 1).astype(np.uint8), bitorder="little").tobytes()
        return out

    def unpack(self, payload: bytes) -> list[Any]:
        out: list[Any] = []
        counts: dict[str, int] = {}
        for item in self.codec.payload:
            element, bits = item.type.element, self.bits(item.type.element)
            n, width = 1, max(bits, 8)
            if isinstance(item.type, Array):
                n, width = self.items(item, payload, counts), bits
                payload = payload[4 * item.counted :]
            size = (n * width + 7) // 8
            taken, payload = payload[:size], payload[size:]
            kind = {"float": "<f4", "half": "<f2"}.get(element.name)
            if kind is not None:
                values = Values(F(one) for one in np.frombuffer(taken, kind))
            else:
                places = np.unpackbits(np.frombuffer(taken, np.uint8), bitorder="little")[: n * width].astype(np.int64)
                codes = (places.reshape(n, width)[:, :bits] << np.arange(bits)).sum(1)
                values = Values(map(int, codes))
                if element.kind == "int":
                    values = Values(one - (one >> bits - 1 << bits) for one in values)
            if isinstance(item.type, Array) and item.type.matrix is not None:
                values.shape = tuple(map(self.length, item.type.matrix))  # type: ignore[assignment]
            out.append(values if isinstance(item.type, Array) else values[0])
        assert payload == b""
        return out

    def items(self, item: typed.Item, payload: bytes, counts: dict[str, int]) -> int:
        assert isinstance(item.type, Array)
        length = item.type.length
        if item.counted:
            counts[length.text] = int.from_bytes(payload[:4], "little")
        return counts[length.text] if length.text in counts else self.length(length)

    def length(self, length: Any) -> int:
        if length.kind == "chunks":
            return -(-self.length(length.of) // max(1, int(self.value(length.expression))))
        return self.read_only["size"] if length.kind == "unit" else max(0, int(self.value(length.expression)))

    # --- a rank by itself

    def run(self, entry: typed.Entry | None, **given: Any) -> None:
        assert entry is not None
        self.env |= given
        for part in entry.rounds:
            self.statements(part.statements)  # of one rank, sum, mean and max are its own value

    def encode(self, gradient: Any) -> bytes:
        values = Values(F(one) for one in np.ravel(gradient))
        if self.codec.init is not None:
            self.run(self.codec.init, gradient=values)
        self.run(self.codec.encode, gradient=values)
        return self.packed

    def decode(self, payload: bytes) -> np.ndarray:
        self.packed = payload
        self.run(self.codec.decode)
        return np.array(self.env["gradient"], F)


@pytest.fixture(scope="session")
def machine() -> type[Machine]:
    return Machine
