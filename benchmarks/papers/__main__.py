"""The tables of the papers, by CaSync's own planner and simulator, beside what the papers print.

    python -m benchmarks.papers                       all papers, two at a time
    python -m benchmarks.papers covap                 one paper
    python -m benchmarks.papers --page docs/papers.md --json docs/figures/papers.json --charts docs/figures

What a paper does not print is assumed, and said. So directions and orders can be compared, and not single figures.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.fidelity import page
from benchmarks.papers import bytecomp, covap, hipress

PAPERS: dict[str, ModuleType] = {"hipress": hipress, "bytecomp": bytecomp, "covap": covap}


def measured(paper: str) -> dict[str, Any]:
    """The figures of one paper."""
    found: dict[str, Any] = PAPERS[paper].measure()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("papers", nargs="*", choices=[[], *PAPERS], metavar="PAPER", help=", ".join(PAPERS))
    parser.add_argument("--json", type=Path, help="write the figures there, beside those of other papers")
    parser.add_argument("--read", type=Path, help="take the figures from there")
    parser.add_argument("--page", type=Path, help="put the tables into this page")
    parser.add_argument("--charts", type=Path, help="draw the charts into this folder")
    given = parser.parse_args()
    papers = given.papers or list(PAPERS)
    if given.read:
        found = json.loads(given.read.read_text())
    else:
        with ProcessPoolExecutor(2) as pool:
            found = dict(zip(papers, pool.map(measured, papers), strict=True))
    if given.json:
        before = json.loads(given.json.read_text()) if given.json.exists() else {}
        given.json.write_text(json.dumps(before | found, indent=1) + "\n")
    for paper in papers:
        table = PAPERS[paper].markdown(found[paper])
        if given.page:
            page.write(given.page, paper, table)
        if given.charts:
            from benchmarks.papers import chart  # matplotlib, which the tables do not need

            chart.write(paper, found[paper], given.charts)
        Console().print(Markdown(table))


if __name__ == "__main__":
    main()
