"""Measures one step at several link rates, for the chart of the README.

    python -m benchmarks.step_time.rates --rates 100mbit,300mbit,1gbit,3gbit,10gbit
    python -m benchmarks.step_time.chart
    python tools/tables.py

The first writes docs/figures/step_time_rates.json, with a description of the machine; it needs root (network
namespaces) and an idle machine. The others draw the chart and write the tables of the pages from it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, revision
from benchmarks.netlab import Netlab
from benchmarks.step_time import job
from benchmarks.step_time.limits import CONTENDERS
from casync.bench.reference_models import MODELS
from casync.bench.units import parse_rate

FIGURES = Path("docs/figures/step_time_rates.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_time.rates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", default="100mbit,300mbit,1gbit,3gbit,10gbit", help="as tc writes them")
    parser.add_argument("--model", default="resnet50", choices=list(MODELS))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one rate")
    parser.add_argument("--json", type=Path, default=FIGURES)
    arguments = parser.parse_args()
    sweep: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "revision": revision(),
        "machine": describe(),
        "model": arguments.model,
        "hosts": arguments.hosts,
        "rounds": arguments.rounds,
        "rates": [],
    }
    for rate in arguments.rates.split(","):
        with Netlab(hosts=arguments.hosts, rate=rate) as lab:
            figures = job.run(
                lab,
                arguments.model,
                hosts=arguments.hosts,
                contenders=";".join(["none", *CONTENDERS]),
                rounds=arguments.rounds,
                timeout=arguments.timeout,
            )
        sweep["rates"].append({"rate": rate, "bits_per_second": 8 * parse_rate(rate), "figures": figures})
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(sweep, indent=1) + "\n")
        print(f"{rate}: done", flush=True)
    print(f"figures: {arguments.json}")


if __name__ == "__main__":
    main()
