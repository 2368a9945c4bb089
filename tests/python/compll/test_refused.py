"""What the language allows and no code is generated for: each is named, with its place in the file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from casync.compll.check import check_program
from casync.compll.cpu.emit import emit
from casync.compll.cpu.library import emit_plugin
from casync.compll.ir.choices import choices_of
from casync.compll.parser import parse
from casync.errors import NotAvailableError

FILE = """properties {{
    unit = {unit};
    {properties}
}}

{declared}

float z;

float plus(float x) {{
    return x + z;
}}

void encode(float* gradient, uint8* compressed) {{
    {encode}
    {packed}
}}

void decode(uint8* compressed, float* gradient) {{
    {decode}
}}
"""


@dataclass(frozen=True)
class Case:
    """The place that `what` is said to be at stands behind an `@`."""

    what: str
    encode: str = "z = 1;"
    declared: str = ""
    properties: str = ""
    unit: str = "8192"
    packed: str = "compressed = concat(z, gradient);"
    decode: str = "float* x; z, x = extract(compressed); gradient = map(x, plus);"

    def text(self) -> str:
        return FILE.format(**vars(self))


WHOLE = "int32 whole(float x) { return x; }"
LARGE = "uint1 large(float x) { return x > 1; }"
STATE = "state float* s[size] = 0;"
CODES = "float level(uint8 x) { return x; } uint8 code(float x) { return %s; }"
SEND = {"packed": "compressed = concat(z, map(gradient, code));",
        "decode": "uint8* c; z, c = extract(compressed); gradient = map(map(c, level), plus);"}  # fmt: skip
CASES = {
    "merge": Case("`merge`", declared="void merge(uint8* left, uint8* right, uint8* merged) {"
                  "float a, b, float* x, y; a, x = extract(left); b, y = extract(right);"
                  "merged = concat(a + b, map(x, y, add)); }"),
    "encode_merged": Case("`encode_merged`", declared="void encode_merged(float* gradient, uint8* compressed) {"
                          "compressed = concat(1.0, gradient); }"),
    "init": Case("an init without one aggregate(..., mean) of a single value", "z = t;",
                 "state float t = 0; void init(float* gradient) { t = reduce(gradient, add); aggregate(t, max); }"),
    "init sets an array": Case("an init that does more than agree on single values", "z = t + reduce(s, add);",
                               STATE + "state float t = 0; void init(float* gradient) {"
                               "t = reduce(gradient, add); aggregate(t, mean); s = gradient; }"),
    "store into an array": Case("elements of an array that is no state",
                                "float* a = map(gradient, abs); int32* i, float* v = filter(a, large); "
                                "@a[i] = 0; z = reduce(a, add) + v.size;", LARGE),
    "single half": Case("a single half in a payload", "h = gradient[0];", declared="half h;",
                        packed="compressed = concat(h, gradient);",
                        decode="float* x; h, x = extract(compressed); z = h; gradient = map(x, plus);"),
    "int4": Case("the type int4 in a payload", declared=CODES.replace("uint8", "int4") % "x",
                 packed=SEND["packed"], decode=SEND["decode"].replace("uint8", "int4")),
    "operator": Case("the operator decomp", "float** left, right = @decomp(matrix(gradient), 1); "
                     "z = reduce(left, add) + reduce(right, add);"),
    "older state": Case("a state as it was before it was assigned",
                        "float* old = s; float t = reduce(gradient, add); s = map(s, gradient, add); t = t + s[3]; "
                        "z = t; @s = map(gather(s, map(range(gradient.size), back)), old, add);",
                        STATE + "int32 back(int32 i) { return size - i; }", unit="whole"),
    "sorted integer": Case("an element of sorted integers", "z = @sort(map(gradient, whole), smaller)[3];", WHOLE),
    "topk of integers": Case("an array of int elements here",
                             "int32* i, v = @topk(map(gradient, whole), 3); z = reduce(v, add) + i[0];", WHOLE),
    "state in if": Case("a state that is assigned inside of an `if`",
                        "z = reduce(s, add); @if (z > 1) { s = gradient; }", STATE, unit="whole"),
    "state beside aggregate": Case("a state that encode assigns although it aggregates",
                                   "z = reduce(gradient, maxAbs); s = map(s, gradient, add); aggregate(z, max);", STATE,
                                   "aggregation = reduce(sum);", "whole", "compressed = concat(map(s, plus));",
                                   "float* x = extract(compressed); gradient = map(x, plus);"),
    "shared rounding": Case("shared random numbers in stochastic rounding",
                            declared=CODES % "floor(@x + shared_random<float>(0, 1))", **SEND),
    "single rounding": Case("a random number outside of map", "z = floor(@gradient[0] + random<float>(0, 1));"),
    "random": Case("a random number here", "z = gradient[0] * @random<float>(0, 1);"),
    "shared integer": Case("a random number here", "z = gradient[0] * @shared_random<uint8>(0, 9);"),
    "global of encode": Case("`k`", "k = step / 2; z = k;", "float k;",
                             decode="float* x; z, x = extract(compressed); z = z + @k; gradient = map(x, plus);"),
    "state of integers": Case("state of int32", "z = reduce(s, add);", "state int32* s[size] = 0;"),
    "single state of integers": Case("a int32 state", "z = s;", "state int32 s = 0;"),
    "function to reduce": Case("reduce with a function of your own", "z = @reduce(gradient, product, 1);",
                               "float product(float x, float y) { return x * y; }"),
    "least of chunks": Case("reduce(chunks(...), smaller)", "z = @reduce(chunks(gradient, 99), smaller)[0];"),
    "sum of few floats": Case("reduce of small chunks but for integers and add",
                              "z = reduce(reduce(chunks(gradient, 8), add), add);"),
    "least integer": Case("reduce(..., smaller) of int elements", "z = @reduce(map(gradient, whole), smaller);", WHOLE),
    "function to sort": Case("sort but for sort(G, smaller) and sort(G, greater)", "z = @sort(gradient, first)[0];",
                             "float first(float x, float y) { return abs(x) > abs(y) ? x : y; }"),
    "sorted chunks": Case("sort but for sort(G, smaller) and sort(G, greater)",
                          "z = @sort(chunks(gradient, 99), smaller)[0];"),
    "chunk values gathered": Case("single elements of such an array",
                                  "float* top = map(chunks(gradient, 99), reduce(chunks(gradient, 99), add), add); "
                                  "int32* i, float* v = filter(gradient, large); "
                                  "z = reduce(@gather(top, i), add) + v.size;", LARGE),
    "scatter elsewhere": Case("scatter but over the unit",
                              "int32* i, float* v = filter(gradient, large); z = reduce(@scatter(i, v, 100), add);",
                              LARGE),
    "rows": Case("units of rows but of quantisers", unit="rows(256, 9000)"),
    "saturating floats": Case("reduce(satsum) of float32", properties="aggregation = reduce(satsum);", unit="whole",
                            packed="compressed = concat(map(gradient, plus));",
                            decode="float* x = extract(compressed); gradient = map(x, abs);"),
    "units that are reduced": Case("reduce but over the whole gradient", properties="aggregation = reduce(sum);",
                                   packed="compressed = concat(map(gradient, plus));",
                                   decode="float* x = extract(compressed); gradient = map(x, abs);"),
}  # fmt: skip


def place(text: str) -> str:
    if "@" not in text:
        return ""
    line = text[: text.index("@")].count("\n") + 1
    return f":{line}:{text.splitlines()[line - 1].index('@') + 1}"


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_generated_is_named(name: str) -> None:
    text = CASES[name].text()
    codec = check_program(parse(text.replace("@", ""), "own.cll"))
    with pytest.raises(NotAvailableError) as refused:
        emit(codec, "own")
        emit_plugin(codec, "own", "own@12345678")
    assert str(refused.value) == f"own.cll{place(text)}: no code can be generated for {CASES[name].what} yet"


def test_a_file_without_decode_is_refused() -> None:
    text = Case("").text().split("void decode")[0].replace("float plus(float x) {\n    return x + z;\n}", "")
    with pytest.raises(NotAvailableError, match="own.cll: no code can be generated for a file without decode yet"):
        emit(check_program(parse(text, "own.cll")), "own")


PARAMETER = """param P {{
    {parameter}
}}

uint<{width}> code(float x) {{
    return x;
}}

void encode(float* gradient, uint8* compressed, P params) {{
    compressed = concat(map(gradient, code));
}}

void decode(uint8* compressed, float* gradient, P params) {{
    uint<{width}>* codes = extract(compressed);
    gradient = codes;
}}
"""


def test_a_width_needs_a_list_of_values() -> None:
    codec = check_program(parse(PARAMETER.format(parameter="int32 bits = 2;", width="params.bits"), "own.cll"))
    with pytest.raises(NotAvailableError, match="own.cll: code is generated for each width, and params.bits may have"):
        choices_of(codec)


def test_a_parameter_needs_a_default() -> None:
    codec = check_program(parse(PARAMETER.format(parameter="int32 bits in {2, 4};", width="params.bits"), "own.cll"))
    with pytest.raises(NotAvailableError, match="own.cll: parameter bits has no default: give it one"):
        emit_plugin(codec, "own", "own@12345678")
