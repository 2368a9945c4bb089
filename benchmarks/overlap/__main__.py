"""Backward and communication alone, and a step of both, on four hosts at 1 Gbit/s.

    python -m benchmarks.overlap [--framework keras] [--framework gluon] [--batch 96] [--rounds 5]

`make test` makes an environment with the frameworks, build/frameworks. The model is eight dense layers of 1,024. Four
ranks share this machine's cores: a batch so large that backward takes them all leaves none for communication.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.netlab import Netlab
from benchmarks.overlap.timing import PARTS, saved

FRAMEWORKS = ("keras", "gluon")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--python", default="build/frameworks/bin/python", help="that has the frameworks")
    parser.add_argument("--compression", default="none")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/overlap.json"))
    options = parser.parse_args()
    found = {}
    with Netlab(hosts=4, rate=options.rate) as lab:
        for framework, batch in product(options.framework or FRAMEWORKS, options.batch or (96,)):
            argv = [os.path.abspath(options.python), "-m", f"benchmarks.overlap.{framework}_worker"]
            argv += [f"--rounds={options.rounds}", f"--compression={options.compression}", f"--batch={batch}"]
            ended = lab.run(4, argv, {"PYTHONSAFEPATH": "1"}, timeout=400)
            if ended.status:
                raise SystemExit(ended.stdout + ended.stderr)
            (line,) = (one for one in ended.stdout.splitlines() if "MEDIANS" in one)
            found[f"{framework}, batches of {batch}"] = json.loads(line.partition("MEDIANS ")[2])
    table = Table(title=f"seconds, four hosts at {options.rate}, {options.compression}, {options.rounds} rounds")
    for title in ("", *PARTS, "saved, of what overlap can"):
        table.add_column(title, justify="right")
    for name, medians in found.items():
        table.add_row(name, *(f"{medians[part]:.3f}" for part in PARTS), f"{saved(medians):.2f}")
    Console(width=120).print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({name: {**one, "saved": saved(one)} for name, one in found.items()}) + "\n")


if __name__ == "__main__":
    main()
