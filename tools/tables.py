"""The tables of README.md and docs/ that are made from code or from figures. Each stands between marks with its name.

python tools/tables.py          writes them into the pages
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # last: benchmarks/ is in the checkout, casync is the installed one

from benchmarks.accuracy import statistics as accuracy  # noqa: E402
from benchmarks.coordinator import figures as coordinator  # noqa: E402
from benchmarks.gpu import manual as gpu  # noqa: E402
from benchmarks.step_time import limits  # noqa: E402
from casync.bench import simulate  # noqa: E402
from casync.bench.units import parse_rate  # noqa: E402
from casync.config import horovod as horovod_variables  # noqa: E402
from casync.config.settings import Config  # noqa: E402
from casync.launcher import flags  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
SIMULATED_RATES = ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")
SIMULATED_CODECS = ("none", "fp16", "terngrad(bits=8)", "terngrad(bits=2)", "onebit")


def figures(name: str) -> dict:
    return json.loads((FIGURES / name).read_text(encoding="utf-8"))


def table(*rows: tuple[str, ...]) -> str:
    """Rows of cells, the first one being the heads."""
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def settings() -> str:
    """Every field of `Config`: its variable, Horovod's, the default, and what its docstring says."""
    rows = []
    for name, text in docstrings(Config):
        ours, *theirs = next(f for f in dataclasses.fields(Config) if f.name == name).metadata["variables"]
        stated = re.fullmatch(r"(`(\w+)(?:=\w+)?`)(?: \[(.*?)\])? \((.*?)\): (.*)", text)
        if stated is None or stated[2] != ours or any(f"`{variable}" not in (stated[3] or "") for variable in theirs):
            raise ValueError(f"Config.{name}: the docstring must begin with `{ours}` [Horovod's] (default): ...")
        rows.append((f"`{name}`", stated[1], stated[3] or "", stated[4], stated[5][0].upper() + stated[5][1:]))
    return table(("field", "variable", "Horovod's", "default", "meaning"), *rows)


def docstrings(of: type) -> Iterator[tuple[str, str]]:
    """Name and docstring, on one line, of each field of a dataclass."""
    body = ast.parse(inspect.getsource(of)).body[0].body
    for field, text in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield field.target.id, " ".join(ast.literal_eval(text.value).split())


def simulated() -> str:
    """What `casync simulate` says of ResNet50 on four hosts, in seconds, by codec and link rate."""
    rows = [
        (f"`{codec}`", *(f"{predicted(codec, rate):.2g}" for rate in SIMULATED_RATES)) for codec in SIMULATED_CODECS
    ]
    return table(("codec", *SIMULATED_RATES), *rows)


def predicted(codec: str, rate: str) -> float:
    gradients = simulate.gradients_of("resnet50")
    return simulate.predict(gradients, rate=parse_rate(rate), compression=codec)["step_s"]


def distant() -> str:
    """What fills a long and lossy link, by contender: Mbit/s."""
    rates = figures("wan.json")["mbit_per_second"]
    cases = next(iter(rates.values()))
    return table(("", *cases), *((name, *(f"{of_case[case]:,}" for case in cases)) for name, of_case in rates.items()))


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"step time": lambda: limits.headline(figures("step_time_rates.json"))},
    "docs/benchmarks.md": {
        "step time": lambda: limits.table(figures("step_time_rates.json")),
        "gpu": lambda: gpu.tables(figures("gpu.json")),
    },
    "docs/choosing.md": {"simulated": simulated},
    "docs/codecs.md": {"accuracy": lambda: accuracy.manual(figures("accuracy.json"))},
    "docs/configuration.md": {"settings": settings},
    "docs/covap.md": {"accuracy": lambda: accuracy.manual(figures("covap.json"))},
    "docs/internals/coordinator.md": {"coordinator": lambda: coordinator.table(figures("coordinator.json"))},
    "docs/launcher.md": {"variables": horovod_variables.manual, "flags": flags.manual},
    "docs/performance.md": {"distant": distant},
}
"""Page -> name of a mark -> what stands there."""


def page(path: str) -> str:
    """The page with its tables as they are to be. Raises ValueError for a mark that is not there."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for name, made in PAGES[path].items():
        begin, end = (f"<!-- {name}: {mark} -->\n" for mark in ("begin", "end"))
        start, stop = text.index(begin) + len(begin), text.index(end)
        text = f"{text[:start]}\n{made()}\n{text[stop:]}"
    return text


if __name__ == "__main__":
    for path in PAGES:
        (ROOT / path).write_text(page(path), encoding="utf-8")
