"""What array operators become: expressions of an element, steps, or both."""

from __future__ import annotations

from collections.abc import Callable

from casync.compll import typed
from casync.compll.ir.arrays import Arrays
from casync.compll.ir.graph import BIT, FLOAT, INT, UNIT, Domain, Value
from casync.compll.ir.program import Call, Reduce, Select
from casync.compll.ir.ranges import Ranges
from casync.compll.types import Array

__all__ = ["LONGEST_SMALL_CHUNK", "OPERATORS"]

Results = tuple[Value, ...]

LONGEST_SMALL_CHUNK = 16
"""Elements of chunks that no loop of their own is worth."""


def _arrays(lowering: Arrays, call: typed.Apply) -> list[Value]:
    given = [a for a in call.arguments if isinstance(a.type, Array)]
    return [lowering.value(argument) for argument in given]


def _scalars(lowering: Arrays, call: typed.Apply) -> list[Value]:
    given = [a for a in call.arguments if not isinstance(a.type, Array) and not isinstance(a, typed.FunctionName)]
    return [lowering.value(argument) for argument in given]


def _function(call: typed.Apply) -> typed.FunctionName:
    return next(argument for argument in call.arguments if isinstance(argument, typed.FunctionName))


def _chunked(lowering: Arrays, call: typed.Apply) -> Domain | None:
    """The domain of the first array's chunks, if it is a view."""
    first = next(a.type for a in call.arguments if isinstance(a.type, Array))
    return None if first.chunk is None else lowering.domain(first.chunk)


def _elements(lowering: Arrays, call: typed.Apply) -> list[Value]:
    """One element of each array; a value per chunk as that of the element's chunk."""
    values = _arrays(lowering, call)
    chunks = _chunked(lowering, call)
    base = values[0].domain
    return [v if v.domain is base or v.domain is not chunks else _spread(lowering, v, base, call) for v in values]


def _spread(lowering: Arrays, value: Value, base: Domain | None, at: typed.Expression) -> Value:
    chunks = value.domain
    assert chunks is not None and chunks.chunk is not None
    spread = lowering.graph.make("spread", (value,), value.kind, chunks, domain=base)
    return lowering.looked_up(spread, at) if _is_small(chunks.chunk) else spread


def _is_small(chunk: Value) -> bool:
    return chunk.op == "constant" and bool(chunk.data <= LONGEST_SMALL_CHUNK)


def _map(lowering: Arrays, call: typed.Apply) -> Results:
    elements = _elements(lowering, call)
    return tuple(lowering.everywhere(v, elements[0].domain) for v in lowering.apply(_function(call), elements, call))


def _reduce(lowering: Arrays, call: typed.Apply) -> Results:
    named = _function(call)
    if named.function is not None or _scalars(lowering, call):
        raise lowering.not_yet("reduce with a function of your own", call)
    (value,) = _arrays(lowering, call)
    chunks = _chunked(lowering, call)
    assert value.domain is not None
    if named.name != "add" and value.kind != FLOAT:
        raise lowering.not_yet(f"reduce(..., {named.name}) of {value.kind} elements", call)
    kind = lowering.kind(call.type.element)
    if chunks is None:
        result = lowering.graph.result(kind)
        ends = named.name in ("smaller", "greater")
        first = lowering.reindexed(value, lowering.graph.constant(0), call) if ends else None
        lowering.act(
            value.domain,
            lambda read: [Reduce(read(value), named.name, result, start=None if first is None else read(first))],
            call,
        )
        return (result,)
    if named.name not in ("add", "maxAbs"):
        raise lowering.not_yet(f"reduce(chunks(...), {named.name})", call)
    memory = lowering.graph.memory("scratch", "f32" if kind == FLOAT else _stored_sums(lowering, value, chunks), chunks)
    lowering.act(value.domain, lambda read: [Reduce(read(value), named.name, to=memory)], call)
    return (lowering.graph.load(memory),)


def _stored_sums(lowering: Arrays, value: Value, chunks: Domain) -> str:
    sums = Ranges(lowering.codec, lowering.block).sums(lowering.computed(value), chunks)
    return "u8" if 0 <= sums.low and sums.high <= 255 else "i32"


def _filter(lowering: Arrays, call: typed.Apply) -> Results:
    elements = _elements(lowering, call)
    (flag,) = lowering.apply(_function(call), elements, call)
    condition = lowering.everywhere(lowering.condition(flag), elements[0].domain)
    graph = lowering.graph
    count = graph.result(INT)
    domain = Domain(count)
    index = graph.memory("scratch", "i32", domain)
    values = graph.memory("scratch", "f32" if elements[0].kind == FLOAT else "i32", domain)
    base = elements[0].domain
    assert base is not None
    lowering.act(base, lambda read: [Select(read(elements[0]), read(condition), count, index, values)], call)
    return graph.load(index), lowering.loaded(values, elements[0])


def _sort(lowering: Arrays, call: typed.Apply) -> Results:
    named = _function(call)
    if named.function is not None or named.name not in ("smaller", "greater") or _chunked(lowering, call):
        raise lowering.not_yet("sort but for sort(G, smaller) and sort(G, greater)", call)
    (value,) = _arrays(lowering, call)
    return (lowering.graph.make("sorted", (value,), value.kind, named.name),)


def _topk(lowering: Arrays, call: typed.Apply) -> Results:
    (value,), (wanted,) = _arrays(lowering, call), _scalars(lowering, call)
    array = lowering.in_memory(value, "f32", call)
    graph = lowering.graph
    assert isinstance(call.types[0], Array)
    domain = lowering.domain_of(call.types[0].length, lambda: graph.result(INT))
    index, values = graph.memory("scratch", "i32", domain), graph.memory("scratch", "f32", domain)
    spare = graph.memory("scratch", "i32", array.domain), graph.memory("scratch", "f32", array.domain)
    made = (domain.length,) if domain.length is not None and domain.length.op == "result" else ()
    lowering.add_call(Call("topk", (array,), (lowering.consumed(wanted),), (*made, index, values, *spare)), call)
    return graph.load(index), graph.load(values)


def _sample(lowering: Arrays, call: typed.Apply) -> Results:
    (value,), (stride,) = _arrays(lowering, call), _scalars(lowering, call)
    graph = lowering.graph
    length = lowering.length(value.domain)
    step = graph.make("max", (graph.constant(1), graph.make("min", (stride, length), INT)), INT)
    assert call.drawing is not None
    start = graph.make("draw_below", (step,), INT, call.drawing.site)
    assert isinstance(call.type, Array)
    domain = lowering.domain_of(call.type.length, lambda: graph.make("/", (length, step), INT))
    number = graph.make("index", kind=INT, domain=domain)
    return (lowering.reindexed(value, graph.make("+", (start, graph.make("*", (number, step), INT)), INT), call),)


def _gather(lowering: Arrays, call: typed.Apply) -> Results:
    value, index = _arrays(lowering, call)
    chunks = _chunked(lowering, call)
    if chunks is None:
        return (lowering.reindexed(value, index, call),)
    assert isinstance(call.type, Array) and chunks.chunk is not None
    graph, chunk = lowering.graph, chunks.chunk
    count = lowering.length(index.domain)
    domain = lowering.domain_of(call.type.length, lambda: graph.make("*", (count, chunk), INT))
    place = _in_chunks(lowering, index, chunk, domain, call)
    there = graph.make("<", (place, lowering.length(value.domain)), BIT)
    return (lowering.choose(there, lowering.reindexed(value, place, call), graph.constant(0.0, FLOAT)),)


def _in_chunks(lowering: Arrays, index: Value, chunk: Value, domain: Domain | None, at: typed.Expression) -> Value:
    """The place of an element of the domain, which has the chunks that `index` names one behind the other: so far from
    its own number as all elements of its chunk are.
    """
    graph = lowering.graph
    number = graph.make("index", kind=INT, domain=domain)
    before = graph.make("-", (index, graph.make("index", kind=INT, domain=index.domain)), INT)
    shift = graph.make("*", (before, chunk), INT)
    chunks = Domain(lowering.length(index.domain), domain, chunk)
    spread = graph.make("spread", (shift,), INT, chunks, domain)
    return graph.make("+", (number, lowering.looked_up(spread, at) if _is_small(chunk) else spread), INT)


def _range(lowering: Arrays, call: typed.Apply) -> Results:
    (count,) = _scalars(lowering, call)
    assert isinstance(call.type, Array)
    domain = lowering.domain_of(call.type.length, lambda: count)
    return (lowering.graph.make("index", kind=INT, domain=domain),)


def _view(lowering: Arrays, call: typed.Apply) -> Results:
    """The type says how it is looked at; the chunks are as long as they are here, whatever becomes of the variables."""
    if isinstance(call.type, Array) and call.type.chunk is not None:
        lowering.domain(call.type.chunk)
    return (_arrays(lowering, call)[0],)


def _scatter(lowering: Arrays, call: typed.Apply) -> Results:
    assert isinstance(call.type, Array)
    if call.type.length.kind != "unit":
        raise lowering.not_yet("scatter but over the unit", call)
    index, value = _arrays(lowering, call)
    view = call.arguments[1].type
    assert isinstance(view, Array)
    if view.chunk is None:
        return (lowering.graph.make("scatter", (index, value), value.kind, domain=UNIT),)
    chunk = lowering.domain(view.chunk).chunk
    assert chunk is not None
    place = _in_chunks(lowering, index, chunk, value.domain, call)
    return (lowering.graph.make("scatter", (place, value), value.kind, "chunks", UNIT),)


def _runlength(lowering: Arrays, call: typed.Apply) -> Results:
    (value,), (repeated, longest) = _arrays(lowering, call), _scalars(lowering, call)
    array = lowering.in_memory(value, "u8", call)
    graph = lowering.graph
    count = graph.result(INT)
    domain = Domain(count)
    heads, lengths = graph.memory("scratch", "u8", domain), graph.memory("scratch", "i32", domain)
    lowering.add_call(Call("runlength", (array,), (repeated, longest), (count, heads, lengths)), call)
    return lowering.loaded(heads, value), graph.load(lengths)


def _repeat(lowering: Arrays, call: typed.Apply) -> Results:
    (value, counts), (total,) = _arrays(lowering, call), _scalars(lowering, call)
    bytes_ = call.type.element.kind == "uint" and call.type.element.bits == 8
    stored = "u8" if bytes_ else lowering.stored_as(value)
    assert isinstance(call.type, Array)
    domain = lowering.domain_of(call.type.length, lambda: total)
    if (array := lowering.repeated(value, counts, domain)) is not None:
        return (array,)
    arrays = (lowering.in_memory(value, stored, call), lowering.in_memory(counts, "i32", call))
    memory = lowering.graph.memory("scratch", stored, domain)
    lowering.add_call(Call("repeat", arrays, (lowering.length(domain),), (memory,)), call)
    return (lowering.loaded(memory, value),)


def _matmul(lowering: Arrays, call: typed.Apply) -> Results:
    operands, transposed, sides = [], [], []
    for argument in call.arguments:
        assert isinstance(argument.type, Array) and argument.type.matrix is not None
        value, turned = lowering.value(argument), False
        while value.op == "transpose":
            value, turned = value.operands[0], not turned
        operands.append(lowering.in_memory(value, "f32", call))
        transposed.append(turned)
        sides.append([lowering.length(lowering.domain(length)) for length in argument.type.matrix])
    (rows, inner), (_, columns) = sides
    assert isinstance(call.type, Array)
    memory = lowering.graph.memory("scratch", "f32", lowering.domain(call.type.length))
    lowering.add_call(Call("matmul", tuple(operands), (rows, inner, columns), (memory,), tuple(transposed)), call)
    return (lowering.graph.load(memory),)


def _transpose(lowering: Arrays, call: typed.Apply) -> Results:
    (value,) = _arrays(lowering, call)
    assert isinstance(call.type, Array)
    return (lowering.graph.make("transpose", (value,), value.kind, domain=lowering.domain(call.type.length)),)


def _hadamard(lowering: Arrays, call: typed.Apply) -> Results:
    """Of all elements as one chunk, or of each chunk of a view."""
    (value,), (wanted,) = _arrays(lowering, call), _scalars(lowering, call)
    chunks = _chunked(lowering, call)
    array = lowering.in_memory(value, "f32", call)
    assert isinstance(call.type, Array)
    memory = lowering.graph.memory("scratch", "f32", lowering.domain_of(call.type.length, lambda: wanted), padded=True)
    chunk = lowering.length(array.domain) if chunks is None else chunks.chunk
    assert chunk is not None
    lowering.add_call(Call("hadamard", (array,), (lowering.length(memory.domain), chunk), (memory,)), call)
    return (lowering.graph.load(memory),)


def _orth(lowering: Arrays, call: typed.Apply) -> Results:
    argument = call.arguments[0]
    assert isinstance(argument.type, Array) and argument.type.matrix is not None
    sides = tuple(lowering.length(lowering.domain(length)) for length in argument.type.matrix)
    array = lowering.in_memory(lowering.value(argument), "f32", call)
    memory, spare = (lowering.graph.memory("scratch", "f32", array.domain) for _ in range(2))
    lowering.add_call(Call("orth", (array,), sides, (memory, spare)), call)
    return (lowering.graph.load(memory),)


OPERATORS: dict[str, Callable[[Arrays, typed.Apply], Results]] = {
    "map": _map, "reduce": _reduce, "filter": _filter, "sort": _sort, "topk": _topk, "sample": _sample,
    "gather": _gather, "range": _range, "chunks": _view, "matrix": _view, "scatter": _scatter,
    "runlength": _runlength, "repeat": _repeat, "matmul": _matmul, "transpose": _transpose, "orth": _orth,
    "hadamard": _hadamard,
}  # fmt: skip
