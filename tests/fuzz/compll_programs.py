"""CompLL programs that nobody wrote down, of choices that Hypothesis makes: passes, lanes and memories are chosen from
what stands beside what, so combinations are what generated code fails on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

__all__ = ["programs"]

WHOLE = ("int32", "uint1", "uint2", "uint4", "uint8", "uint16")
LARGE = ("17", "100", "1000", "params.width")
CHUNKS = ("2", "5", "16", *LARGE)  # small ones are sums of integers

# R stands for a real expression, I for one of integers, B for a condition.
FORMS = {
    "R": [
        "(R + R)", "(R - R)", "(R * R)", "(R / 4)", "(R / (abs(R) + 0.5))", "abs(R)", "-R", "min(R, R)", "max(R, R)",
        "smaller(R, R)", "greater(R, R)", "floor(R)", "ceil(R)", "rint(R)", "sqrt(abs(R))", "exp2(min(R, 5.0))",
        "log2(abs(R) + 0.1)", "cos(R)", "(B ? R : R)", "((uint4)R * 0.5)", "((int8)R - R)", "(I * 0.25)",
    ],
    "I": [
        "(I + I)", "(I - I)", "(I * I)", "(I / I)", "(I % 7)", "(I & I)", "(I | I)", "(I ^ I)", "(I << 2)", "(I >> I)",
        "min(I, I)", "max(I, I)", "abs(I)", "~I", "(B ? I : I)", "(int32)rint(R)", "(uint4)I", "(int8)I",
    ],
    "B": ["(R < R)", "(R >= R)", "(R == R)", "(I > I)", "(I != I)", "(B && B)", "(B || B)", "!B"],
}  # fmt: skip
LEAVES = {"R": ["0.5", "-1.0", "0.0", "-0.0", "10.0", "1e-3", "params.level"], "I": ["0", "1", "3", "-5", "255"]}


class Value(NamedTuple):
    """A name of the program; an array as long as the unit, as its chunks of some size, or as a list that a filter
    wrote, whose places in the unit are `places`.
    """

    name: str
    element: str
    length: str = "unit"
    places: str = ""


def declared(*arrays: Value) -> str:
    """A type holds for the names behind it until the next one."""
    first = [i == 0 or array.element != arrays[i - 1].element for i, array in enumerate(arrays)]
    return ", ".join(f"{v.element}* {v.name}" if new else v.name for v, new in zip(arrays, first, strict=True))


class Writer:
    """A program in the making, of choices that Hypothesis makes."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw, self._names = draw, 0
        self.unit = self.pick(["whole", "4096"])
        self.functions: list[str] = []
        self.lines: list[str] = []
        self.arrays: list[Value] = []
        self.scalars: list[Value] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(options))

    def new(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def expression(self, kind: str, names: Sequence[tuple[str, str]], depth: int) -> str:
        if depth <= 0 and kind == "B":
            return self.filled(self.pick(["(R > R)", "(I < I)"]), names, 0)
        if depth <= 0:
            wanted = [name for name, element in names if (element == "float") == (kind == "R")]
            return str(self.pick([*(wanted * 3), *LEAVES[kind]]))
        return self.filled(self.pick(FORMS[kind]), names, depth - 1)

    def filled(self, form: str, names: Sequence[tuple[str, str]], depth: int) -> str:
        return re.sub(r"\b[RIB]\b", lambda place: self.expression(place[0], names, depth), form)

    def function(self, given: Sequence[str], results: Sequence[str]) -> str:
        """One whose first result is made of an argument at least."""
        name, arguments = self.new("f"), [(f"a{i}", element) for i, element in enumerate(given)]
        names = [*arguments, *((scalar.name, scalar.element) for scalar in self.scalars[-2:])]
        kinds = ["R" if result == "float" else "B" if result == "uint1" else "I" for result in results]
        returned = [self.expression(kind, names, self.pick([1, 2, 3])) for kind in kinds]
        if not re.search(r"\ba\d\b", returned[0]):
            returned[0] = f"(a0 > 0 || {returned[0]})" if kinds[0] == "B" else f"a0 + {returned[0]}"
        body = f"    return {', '.join(returned)};\n"
        if self.pick([False, False, True]):
            early = ", ".join(self.expression(kind, names, 0) if kind != "B" else "0" for kind in kinds)
            body = f"    if ({self.expression('B', names, 1)}) {{\n        return {early};\n    }}\n{body}"
        signature = ", ".join(f"{element} {argument}" for argument, element in arguments)
        self.functions.append(f"{', '.join(results)} {name}({signature}) {{\n{body}}}\n")
        return name

    # --- statements

    def several(self, length: str) -> list[Value]:
        like = [array for array in self.arrays if array.length == length]
        return [self.pick(like) for _ in range(self.pick([1, 1, 2, 3]))]

    def map(self) -> None:
        given = self.several(self.pick(self.arrays).length)
        names, elements = [array.name for array in given], [array.element for array in given]
        by_chunk = [array for array in self.arrays if array.length in CHUNKS]
        if given[0].length == "unit" and by_chunk and self.pick([False, True]):
            chunk = self.pick(by_chunk)
            names[0] = f"chunks({names[0]}, {chunk.length})"
            names, elements = [*names, chunk.name], [*elements, chunk.element]
        elif self.pick([False, False, True]):
            names, elements = [*names, f"range({given[0].name}.size)"], [*elements, "int32"]
        results = [self.pick(["float", *WHOLE]) for _ in range(self.pick([1, 1, 2]))]
        made = [Value(self.new("v"), result, given[0].length, given[0].places) for result in results]
        function = self.function(elements, results)
        self.lines.append(f"{declared(*made)} = map({', '.join(names)}, {function});")
        self.arrays += made

    def reduced(self, array: Value) -> tuple[str, str, str]:
        """An array or one that is made of it on the way, its element, and what to reduce it with."""
        name, element = array.name, array.element
        if self.pick([False, True]):
            element = self.pick(["float", "int32", "uint1"])
            name = f"map({name}, {self.function([array.element], [element])})"
        return name, element, self.pick(["add", "maxAbs"]) if element == "float" else "add"

    def total(self, of: Value | None = None) -> None:
        array, element, function = self.reduced(of or self.pick(self.arrays))
        made = Value(self.new("g"), "float" if element == "float" else self.pick(["int32", "uint8", "float"]))
        if element == "float":
            function = self.pick([function, "smaller", "greater"])  # of an empty list infinite
            self.lines.append(f"{made.name} = bounded(reduce({array}, {function}));")
        else:
            self.lines.append(f"{made.name} = reduce({array}, {function});")
        self.scalars.append(made)

    def chunk(self) -> None:
        array, element, function = self.reduced(self.pick([v for v in self.arrays if v.length == "unit"]))
        size = self.pick(CHUNKS if function == "add" and element != "float" else LARGE)
        made = Value(self.new("c"), element if element == "float" else self.pick(["int32", "uint8"]), size)
        self.lines.append(f"{declared(made)} = reduce(chunks({array}, {size}), {function});")
        self.arrays.append(made)

    def filter(self) -> None:
        given = self.several("unit")
        function = self.function([array.element for array in given], ["uint1"])
        self.listed(given[0].element, f"filter({', '.join(array.name for array in given)}, {function})")

    def round(self) -> None:
        if self.unit != "whole":
            array = self.pick([array for array in self.arrays if array.length == "unit"])
            made, function = Value(self.new("v"), self.pick(["uint4", "int32", "float"])), self.new("f")
            body = "    return floor(x * 3.0 + random<float>(0, 1));\n"
            self.functions.append(f"{made.element} {function}({array.element} x) {{\n{body}}}\n")
            self.lines.append(f"{declared(made)} = map({array.name}, {function});")
            self.arrays.append(made)

    def topk(self) -> None:
        reals = [array for array in self.arrays if array.length == "unit" and array.element == "float"]
        self.listed("float", f"topk({self.pick(reals).name}, {self.pick(['1', '20', 'gradient.size / 3'])})")

    def sort(self) -> None:
        array = self.pick([array for array in self.arrays if array.length == "unit"])
        made = Value(self.new("v"), array.element)
        self.lines.append(f"{declared(made)} = sort({array.name}, {self.pick(['smaller', 'greater'])});")
        self.arrays.append(made)

    def gather(self) -> None:
        places = [array for array in self.arrays if array.name == array.places]
        if places:
            array = self.pick([array for array in self.arrays if array.length == "unit"])
            place = self.pick(places)
            made = Value(self.new("v"), array.element, place.length, place.places)
            self.lines.append(f"{declared(made)} = gather({array.name}, {place.name});")
            self.arrays.append(made)

    def listed(self, element: str, rows: str) -> None:
        places = self.new("p")
        made = [Value(places, "int32", places, places), Value(self.new("v"), element, places, places)]
        self.lines.append(f"{declared(*made)} = {rows};")
        self.arrays += made

    def scalar(self) -> None:
        names = [("gradient.size", "int32"), *((scalar.name, scalar.element) for scalar in self.scalars)]
        made = Value(self.new("g"), self.pick(["float", "int32", "uint8"]))
        expression = self.expression("R" if made.element == "float" else "I", names, 2)
        self.lines.append(f"{made.name} = {expression};")
        self.scalars.append(made)

    def state(self, state: str) -> None:
        given = [self.pick([v for v in self.arrays if v.length == "unit"]).name, state]
        elements = [v.element for v in self.arrays if v.name == given[0]]
        self.lines.append(f"{state} = map({', '.join(given)}, {self.function([*elements, 'float'], ['float'])});")
        self.arrays.append(Value(state, "float"))

    def statements(self, kinds: Sequence[Callable[[], None]], counts: Sequence[int]) -> None:
        for _ in range(self.pick(counts)):
            self.pick(kinds)()

    def finish(self, places: str) -> None:
        """The gradient of all that decode has not used yet: at some places or, without a name of them, everywhere."""
        last = []
        for array in self.unread(self.arrays):
            if array.places == places and array.length not in CHUNKS:
                last.append(array)
            elif array.length in CHUNKS and not places:
                last.append(Value(self.new("u"), "float"))
                spread = f"chunks(range(gradient.size), {array.length}), {array.name}"
                function = self.function(["int32", array.element], ["float"])
                self.lines.append(f"{declared(last[-1])} = map({spread}, {function});")
            else:
                self.total(array)
        if not last:
            last = [array for array in self.arrays if array.places == places and array.length not in CHUNKS][:1]
        if not last:
            self.lines.append("int32* all = range(gradient.size);")
            last = [Value("all", "int32")]
        arguments = [(array.element, f"b{i}") for i, array in enumerate(last)]
        unused = [scalar.name for scalar in self.unread(self.scalars)]
        all_of = self.function([element for element, _ in arguments], ["float"])
        total = " + ".join([f"{all_of}({', '.join(name for _, name in arguments)})", *unused])
        signature = ", ".join(f"{element} {name}" for element, name in arguments)
        self.functions.append(f"float last({signature}) {{\n    return {total};\n}}\n")
        values = f"map({', '.join(array.name for array in last)}, last)"
        self.lines.append(f"gradient = {f'scatter({places}, {values}, gradient.size)' if places else values};")

    def unread(self, values: Sequence[Value]) -> list[Value]:
        text = " ".join([*self.functions, *(line.partition(" = ")[2] for line in self.lines)])
        return [value for value in values if not re.search(rf"\b{value.name}\b", text)]


def encode_of(writer: Writer, with_state: bool) -> list[Value]:
    """Any statements; gives what they have not used themselves, which is to be sent."""
    writer.arrays = [Value("gradient", "float")]
    often = [writer.total, writer.chunk, writer.filter, writer.scalar, writer.map, writer.map]
    kinds = [*often, *often, writer.topk, writer.sort, writer.gather, writer.round]
    writer.statements(kinds, [1, 3, 5])
    if with_state:
        writer.state("kept")
        writer.statements(kinds, [0, 2])
    sent = writer.unread([*writer.scalars, *writer.arrays])
    sent = [value for value in sent if value.name != "kept"] or [Value("gradient", "float")]
    places = {value.places for value in sent} - {""} - {value.name for value in sent}
    return [*sent, *(Value(name, "int32", name, name) for name in sorted(places))]


def decode_of(writer: Writer, sent: Sequence[Value], with_state: bool) -> None:
    """Scalars are globals under a name of their own, as functions read them."""
    names = {value.name: writer.new("x") for value in sent}
    received = [Value(names[v.name], v.element, v.length, names.get(v.places, "")) for v in sent]
    writer.scalars = [value for value, was in zip(received, sent, strict=True) if was in writer.scalars]
    writer.arrays = [value for value in received if value not in writer.scalars]
    writer.lines = [f"{declared(array)};" for array in writer.arrays]
    writer.lines.append(f"{', '.join(value.name for value in received)} = extract(compressed);")
    if not writer.arrays:
        writer.lines.append("int32* every = range(gradient.size);")
        writer.arrays = [Value("every", "int32")]
    if with_state and any(array.length == "unit" for array in writer.arrays):
        writer.state("mean")
    writer.statements([writer.map, writer.total, writer.scalar], [0, 1, 3])
    writer.finish(writer.pick(sorted({array.places for array in writer.arrays})))


@st.composite
def programs(draw: Callable[..., Any]) -> str:
    """A file whose decode makes its gradient of all that encode sends."""
    writer = Writer(draw)
    wrapped, encode_state, decode_state = (writer.pick([False, True]) for _ in range(3))
    sent = encode_of(writer, encode_state)
    encode = [*writer.lines, f"compressed = concat({', '.join(value.name for value in sent)});"]
    counted = any(f"int32* {v.name}, " in line and "filter(" in line for line in encode for v in sent)
    scalars = writer.scalars
    decode_of(writer, sent, decode_state)
    return text_of(writer, [*scalars, *writer.scalars], encode, wrapped, counted)


def text_of(writer: Writer, globals_: Sequence[Value], encode: Sequence[str], wrapped: bool, counted: bool) -> str:
    body = "\n".join([*writer.functions, *encode, *writer.lines])
    aggregation = "gather" if counted else writer.pick(["gather", "reencode"])
    feedback = "wrapper;\n    contractive = yes" if wrapped else "none"
    bound = ";\n    bound = 8000 + 100 * size" if counted else ""
    properties = f"unit = {writer.unit};\n    aggregation = {aggregation};\n    feedback = {feedback}{bound}"
    parts = [f"properties {{\n    {properties};\n}}\n"]
    fields = {"width": "    int32 width = 7 in [1, 5000];\n", "level": "    float level = 0.75 in [0, 100];\n"}
    fields = {name: field for name, field in fields.items() if f"params.{name}" in body}
    given = ", Settings params" if fields else ""
    parts += [f"param Settings {{\n{''.join(fields.values())}}}\n"] if fields else []
    parts += [f"state float* {name}[size] = 0.5;\n" for name in ("kept", "mean") if f"{name} = " in body]
    parts += [f"{value.element} {value.name};\n" for value in globals_]
    parts += ["float bounded(float x) {\n    return x > -1e20 && x < 1e20 ? x : 0.25;\n}\n"] * ("bounded(" in body)
    parts += writer.functions
    for head, lines in (("encode(float* gradient, uint8* compressed", encode),
                        ("decode(uint8* compressed, float* gradient", writer.lines)):  # fmt: skip
        parts.append("".join([f"void {head}{given}) {{\n", *(f"    {line}\n" for line in lines), "}\n"]))
    return "".join(parts)
