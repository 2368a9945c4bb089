"""The papers' tables: the page has those of the figures, and these are in order."""

import json
from pathlib import Path

import pytest

from benchmarks.fidelity import page
from benchmarks.papers.__main__ import MARK, PRINTED, markdown
from benchmarks.papers.clusters import CLUSTERS, plan
from casync.bench.reference_models import MODELS, mebibytes

ROOT = Path(__file__).parents[3]
FIGURES = json.loads((ROOT / "docs/figures/papers.json").read_text())


def test_the_page_has_the_tables_of_the_figures():
    text = (ROOT / "docs/papers.md").read_text()
    assert page.written(text, MARK, markdown(FIGURES)) == text


def test_no_plan_is_under_its_bound_nor_worse_than_what_it_began_with():
    assert len(FIGURES["cells"]) == len(CLUSTERS) * len(PRINTED) * 3
    for cell in FIGURES["cells"]:
        assert cell["bound_s"] <= cell["step_s"] * (1 + 1e-9), cell
        assert cell["step_s"] <= cell["descent_s"] <= min(cell["none_s"], cell["all_s"]) * (1 + 1e-9), cell


@pytest.mark.parametrize("place", CLUSTERS)
def test_a_cell_is_what_it_was(place):
    found = plan("lstm", CLUSTERS[place], "onebit")
    kept = next(
        cell
        for cell in FIGURES["cells"]
        if (cell["cluster"], cell["model"], cell["codec"]) == (place, "lstm", "onebit")
    )
    assert found["step_s"] == pytest.approx(kept["step_s"], rel=1e-6)
    assert found["bound_s"] == pytest.approx(kept["bound_s"], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "gradients", "size", "largest"),
    [  # as HiPress's table 6 and ByteComp's table 4 print them; both BERTs have one gradient less
        ("vgg16", 32, 527.79, 392.00),
        ("vgg19", 38, 548.05, 392.00),
        ("resnet101", 314, 169.94, 9.00),
        ("bert-base", 206, 420.02, 89.42),
        ("bert-large", 398, 1282.60, 119.23),
        ("gpt2", 148, 474.70, 147.24),
        ("ugatit", 148, 2558.75, 1024.00),
        ("lstm", 10, 327.97, 190.42),
        ("transformer", 185, 234.08, 65.84),
    ],
)
def test_models_have_the_printed_sizes(model, gradients, size, largest):
    shapes = MODELS[model]()
    assert len(shapes) == gradients
    assert mebibytes(shapes) == pytest.approx(size, abs=0.01)
    assert max(mebibytes([shape]) for shape in shapes) == pytest.approx(largest, abs=0.01)
