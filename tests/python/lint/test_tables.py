"""The pages have the tables that code and figures hold."""

import pytest

from support.files import ROOT, load

tables = load("tools/tables.py")


@pytest.mark.parametrize("path", tables.PAGES)
def test_the_page_has_the_current_tables(path):
    assert (ROOT / path).read_text(encoding="utf-8") == tables.page(path), "run `python tools/tables.py`"


def test_every_setting_is_in_the_table():
    rows = tables.settings().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [field.name for field in tables.dataclasses.fields(tables.Config)]


def test_the_chart_is_drawn_from_the_figures():
    text = (tables.FIGURES / "step_time_rates.json").read_text(encoding="utf-8")
    chart = (tables.FIGURES / "step_time.svg").read_text(encoding="utf-8")
    assert tables.limits.source_note(text) in chart, "run `python -m benchmarks.step_time.chart`"
