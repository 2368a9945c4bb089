"""What a sweep over link rates says: which figures are the link's, and what chart and tables make of that."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.step_time.limits import POWERSGD, drawn, headline, points, source_note, table

GRADIENTS = 1.5 * 102_228_128  # bytes that an uncompressed step of ResNet50 puts on a link, with four ranks


def sweep(*rates: tuple[str, float], cpu: dict[str, float]) -> dict[str, Any]:
    """Steps that take as long as the link, and bytes of onebit that are a twentieth; two cores, four ranks."""
    shares = {"ddp": 1.0, "ddp+fp16": 0.5, "casync:onebit": 0.05}
    measured = []
    for name, bits in rates:
        goodput = bits / 8
        figures = {
            "size": 4,
            "goodput": [goodput],
            "seconds": {spec: [share * GRADIENTS / goodput] for spec, share in shares.items()},
            "cpu": {spec: [cpu[spec]] for spec in shares},
            "carried": {spec: 0 if spec.startswith("ddp") else share * GRADIENTS for spec, share in shares.items()},
        }
        measured.append({"rate": name, "bits_per_second": bits, "figures": figures})
    machine = {"processor": "a processor", "cores": 2, "kernel": "6.1", "torch": "2.13"}
    said = {"date": "2026-11-27", "revision": "abc1234", "machine": machine}
    return {**said, "model": "resnet50", "hosts": 4, "rounds": 1, "rates": measured}


IDLE = {"ddp": 0.1, "ddp+fp16": 0.1, "casync:onebit": 0.1}  # 0.2 s of two cores for all four ranks


def test_a_point_is_the_links_while_the_bytes_take_longer_than_the_cores():
    found = {p.contender: p for p in points(sweep(("1gbit", 1e9), cpu=IDLE))}
    assert found["ddp"].link_s == pytest.approx(GRADIENTS * 8 / 1e9, rel=1e-3)
    assert found["ddp+fp16"].link_s == pytest.approx(found["ddp"].link_s / 2)
    assert all(point.core_s == pytest.approx(0.2) for point in found.values())
    assert found["ddp"].held_by_link and found["ddp+fp16"].held_by_link
    assert not found["casync:onebit"].held_by_link  # 61 ms on the link


def test_a_line_ends_at_the_first_rate_that_the_cores_limit():
    rates = ("10gbit", 1e10), ("100mbit", 1e8), ("1gbit", 1e9)
    found = [p for p in points(sweep(*rates, cpu=IDLE)) if p.contender == "casync:onebit"]
    assert [p.rate for p in found] == ["100mbit", "1gbit", "10gbit"]
    assert [p.rate for p in drawn(found)] == ["100mbit"]
    again = [found[0], found[1], found[0]]
    assert drawn(again) == [found[0]], "a line has no gap"


def test_the_table_names_the_cores_where_they_are_the_limit():
    lines = table(sweep(("100mbit", 1e8), ("1gbit", 1e9), cpu=IDLE)).splitlines()
    assert lines[0] == "|  | 100mbit | 1gbit |"
    assert lines[2] == "| DDP | 12.267 | 1.227 |"
    assert "| CaSync, onebit | 0.613 | cores |" in lines


def test_the_headline_is_at_the_highest_rate_that_all_share():
    said = headline(sweep(("100mbit", 1e8), ("1gbit", 1e9), cpu=IDLE))
    assert "links of 100 Mbit/s the synchronisation of a step's gradients takes" in said
    assert "12.27 s with DDP, 6.13 s with DDP and its fp16 hook" in said
    assert "with DDP and its fp16 hook, and 0.61 s with `onebit` of CaSync.\n" in said
    measured = "Measured on 2026-11-27 at revision abc1234, on 2 cores of a processor, Linux 6.1, torch 2.13.\n"
    assert said.endswith(measured)
    with pytest.raises(ValueError, match="measure lower rates"):
        headline(sweep(("1gbit", 1e9), cpu=IDLE))


def test_the_powersgd_hook_sends_two_thin_matrices_for_a_large_one():
    swept = sweep(("100mbit", 1e8), cpu=IDLE)
    of_one = swept["rates"][0]["figures"]
    for name, value in (("seconds", [1.0]), ("cpu", [0.1]), ("carried", 0)):
        of_one[name][POWERSGD] = value
    found = {p.contender: p for p in points(swept)}
    # Of the last layer, 1000 x 2048, it sends 4 x 3048 numbers, which is 0.006; small layers and biases go whole.
    assert 0.006 < found[POWERSGD].link_s / found["ddp"].link_s < 0.02
    assert "DDP's powerSGD hook takes 1.00 s, and the processors are its limit.\n" in headline(swept)


def test_a_chart_names_the_figures_that_it_was_drawn_from():
    assert source_note("{}") != source_note("{ }")
