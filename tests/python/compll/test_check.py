"""What the checker infers: lengths, conversions, what differs between ranks. What it refuses is in test_diagnostics."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.compll import CompllError, check_program, parse, typed

FIGURE_5 = Path(__file__).parents[2] / "compll" / "figure5.cll"
ENCODE = "void encode(float* gradient, uint8* compressed) {{ {} }}"
DECODE = " void decode(uint8* compressed, float* gradient) {{ {} }}"


def codec(encode: str, decode: str | None = None, before: str = "") -> typed.Codec:
    return check_program(parse(before + ENCODE.format(encode) + ("" if decode is None else DECODE.format(decode))))


def kind(encode: str, decode: str | None = None, before: str = "") -> str:
    with pytest.raises(CompllError) as error:
        codec(encode, decode, before)
    return error.value.finding


def test_figure_5_means_what_the_paper_says() -> None:
    figure = check_program(parse(FIGURE_5.read_text(encoding="utf-8"), "figure5.cll"))
    assert [str(item.type) for item in figure.payload] == [
        "uint8", "uint8", "float", "float", "uint2* of gradient.size elements",
    ]  # fmt: skip
    assert figure.decode is None and figure.fixed_size


def test_what_extract_must_name_need_not_be_read() -> None:
    """`concat(...)` of figure 5 packs `tail`, which a natural decode has no use for."""
    encode = "uint8 tail = gradient.size % 4; m = reduce(gradient, add); compressed = concat(tail, m, gradient);"
    decode = "uint8 tail; float* x; tail, m, x = extract(compressed); gradient = x;"
    assert codec(encode, decode, "float m; ").decode is not None
    assert kind(encode, decode.replace("uint8 tail", "uint8 tail, other"), "float m; ") == "unused-name"


def test_arrays_of_one_count_share_it() -> None:
    gather = "properties { aggregation = gather; bound = 8 * size + 8; } "
    both = "int32* i, float* x = filter(gradient, abs); "
    shared = codec(both + "compressed = concat(i, x);", before=gather)
    assert [item.counted for item in shared.payload] == [True, False]
    own = codec(both + "int32* j = filter(x, abs); compressed = concat(i, j);", before=gather)
    assert [item.counted for item in own.payload] == [True, True]


def test_lengths_of_chunks_broadcast_into_their_elements() -> None:
    text = "float* top = reduce(chunks(gradient, 64), maxAbs); {} compressed = concat(top, Q);"
    fits = codec(text.format("float* Q = map(chunks(gradient, 64), top, add);"))
    assert [str(item.type) for item in fits.payload] == [
        "float* of chunks(size, 64) elements", "float* of gradient.size elements",
    ]  # fmt: skip
    assert kind(text.format("float* Q = map(gradient, top, add);")) == "length"
    assert kind(text.format("float* Q = map(chunks(gradient, 32), top, add);")) == "length"


def test_after_an_if_an_array_has_a_length_of_its_own() -> None:
    gather = "properties { aggregation = gather; bound = 8 * size + 8; } "
    text = "int32* i, float* x = filter(gradient, abs); if (x.size > 5) { i, x = topk(gradient, 5); } "
    assert [item.counted for item in codec(text + "compressed = concat(i, x);", before=gather).payload] == [True, False]


def test_matrices_multiply_where_their_sides_meet() -> None:
    whole = "properties { unit = whole; } state float** Q[cols][4] = 1; "
    fits = "float** P = matmul(matrix(gradient), Q); compressed = concat(P);"
    assert str(codec(fits, before=whole).payload[0].type) == "float** of rows x 4"
    assert kind("compressed = concat(matmul(Q, matrix(gradient)));", before=whole) == "length"


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("float a = reduce(gradient, add); aggregate(a, sum); m = a;", True),
        ("m = reduce(gradient, add);", False),
        ("float a = 0; if (rank > 0) { a = 1; } m = a;", False),  # who chooses decides what is chosen
        ("m = lr * world;", True),
        ("m = random<float>(0, 1);", False),
        ("m = shared_random<float>(0, 1);", True),
    ],
)
def test_decode_reads_only_what_every_rank_has(text: str, fine: bool) -> None:
    before = "float m; float f(float x) { return x * m; } "
    encode, decode = f"{text} compressed = concat(gradient);", "float* x = extract(compressed); gradient = map(x, f);"
    if fine:
        assert codec(encode, decode, before).kept == ("m",)
    else:
        assert kind(encode, decode, before) == "decode-reads-local"


def test_what_decode_extracts_is_not_kept_from_encode() -> None:
    before = "float m; float f(float x) { return x * m; } "
    encode = "m = reduce(gradient, add); compressed = concat(m, gradient);"
    decode = "float* x; m, x = extract(compressed); gradient = map(x, f);"
    assert codec(encode, decode, before).kept == ()


def test_conversions_are_in_the_tree() -> None:
    statements = codec("uint2 q = 2.5; compressed = concat(q);").encode.rounds[0].statements
    assert isinstance(statements[0], typed.Assign)
    assert str(statements[0].targets[0].type) == "uint2" and str(statements[0].value.type) == "float"
    (function,) = codec("compressed = concat(f(1));", before="int4 f(float x) { return x; } ").functions
    assert isinstance(function.body[0], typed.Return) and isinstance(function.body[0].values[0], typed.Convert)


def test_draws_are_numbered_in_the_order_of_the_text() -> None:
    before = (
        "float b(float x) { return x + shared_random<float>(0, 1); } "
        "float a(float x) { return b(x) + random<float>(0, 1); } "
    )
    functions = codec("compressed = concat(map(sample(gradient, 2), a));", before=before).functions
    assert [function.private for function in functions] == [False, True]
    drawn = [function.body[0].values[0].operands[1].drawing for function in functions]  # type: ignore[attr-defined]
    assert drawn == [typed.Drawing(0, True), typed.Drawing(1, False)]


def test_merge_packs_what_encode_packs() -> None:
    merge = " void merge(uint8* left, uint8* right, uint8* merged) {{ {} }}"
    encode = ENCODE.format("compressed = concat(gradient);")
    body = "float* a = extract(left); float* b = extract(right); merged = concat({});"
    merged = check_program(parse(encode + merge.format(body.format("map(a, b, add)")))).merge
    assert merged is not None and (merged.inputs, merged.output) == (("left", "right"), "merged")
    with pytest.raises(CompllError) as error:
        check_program(parse(encode + merge.format(body.format("reduce(a, add), reduce(b, add)"))))
    assert error.value.finding == "concat-value"


def test_an_aggregated_value_is_another_one() -> None:
    """Its length, too: `n` below is not `world` any more, so the arrays may differ."""
    before = "properties { aggregation = gather; bound = 8 * size + 8; } "
    text = "int32 n = world; {} int32* a = range(n), b = range(world); compressed = concat(map(a, b, add));"
    text = text.replace("a = range(n), b = range(world)", "a = range(n); int32* b = range(world)")
    assert codec(text.format("")).fixed_size
    assert kind(text.format("aggregate(n, sum);"), before=before) == "length"


def test_how_an_owner_encodes_may_differ_but_not_what_it_packs() -> None:
    merged = " void encode_merged(float* gradient, uint8* compressed) {{ {} }}"
    encode = ENCODE.format("compressed = concat(gradient);")
    packed = check_program(parse(encode + merged.format("compressed = concat(map(gradient, abs));"))).encode_merged
    assert packed is not None and packed.inputs == ("gradient",)
    with pytest.raises(CompllError) as error:
        check_program(parse(encode + merged.format("compressed = concat(reduce(gradient, add));")))
    assert error.value.finding == "concat-value"


def test_live_values_are_those_read_after_the_cut() -> None:
    encode = (
        "float a = reduce(gradient, add); float b = reduce(gradient, greater); float c = a + b; "
        "aggregate(c, sum); float d = b + c; aggregate(d, max); compressed = concat(a, d);"
    )
    assert [part.live for part in codec(encode).encode.rounds] == [(), ("a", "b"), ("a",)]


@pytest.mark.parametrize(
    ("unit", "most", "fine"),
    [
        ("params.n", 5000, True),
        ("+params.n", 5000, True),
        ("4096 / params.n * params.n", 4096, True),
        ("4096 / params.n * params.n", 5000, False),
    ],
)
def test_units_are_worked_out_where_parameters_decide(unit: str, most: int, fine: bool) -> None:
    before = f"param P {{ int32 n = 8 in [1, {most}]; }} properties {{ unit = {unit}; }} "
    if fine:
        assert codec("compressed = concat(gradient);", before=before).properties.unit is not None
    else:
        assert kind("compressed = concat(gradient);", before=before) == "property-value"


def test_a_matrix_with_a_counted_side_cannot_be_sent() -> None:
    before = "properties { unit = whole; aggregation = gather; bound = 8 * size + 8; } "
    text = "int32 r = {}; float** P, Q = decomp(matrix(gradient), r); compressed = concat(P, Q);"
    assert kind(text.format("1 + reduce(gradient, greater)"), before=before) == "concat-value"
    known = codec(text.format("min(rows, 4)"), before=before.replace("bound = 8 * size + 8; ", ""))
    assert str(known.payload[1].type) == "float** of cols x min(rows, 4)"
