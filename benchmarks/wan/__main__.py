"""Two hosts with a long and lossy link between them: how much of it an allreduce fills.

    python -m benchmarks.wan [--rtt 50] [--loss 0.001] [--rounds 3]

Beside CaSync, over its own sockets and over MPI, are gloo and one raw TCP stream, with cubic, which every kernel has,
and with bbr. The distance is emulated (benchmarks/netlab/wan.cc). Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.netlab import Distance, Netlab

WORKER = [sys.executable, "-m", "benchmarks.wan.worker"]
BY_SOCKETS = ("gloo", "casync", "casync cubic", "casync:onebit", "casync cubic:onebit")
BY_MPI = ("casync, MPI", "casync, MPI:onebit")
LIMITS = {"cubic": "raw TCP, cubic", "bbr": "raw TCP, bbr"}


def measured(lab: Netlab, rounds: int) -> dict[str, float]:
    """Bits per second each way, by contender."""
    found = {name: lab.goodput(seconds=8.0, skip=3.0, congestion=congestion) for congestion, name in LIMITS.items()}
    out = lab.folder / "wan.json"
    for of_system, contenders in (("cubic", BY_SOCKETS), ("bbr", ("gloo",))):
        lab.set_congestion(of_system)
        ended = lab.run_torch([*WORKER, str(rounds), str(out), *contenders], {"PYTHONSAFEPATH": "1"}, timeout=900)
        if ended.status:
            raise SystemExit(ended.stdout + ended.stderr)
        told = json.loads(out.read_text())
        found |= told if of_system == "cubic" else {f"{name}, bbr": rate for name, rate in told.items()}
    lab.set_congestion("cubic")
    environ = {"PYTHONSAFEPATH": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    ended = lab.run(2, [*WORKER, str(rounds), str(out), *BY_MPI], environ, timeout=900)
    if ended.status:
        raise SystemExit(ended.stdout + ended.stderr)
    return found | json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wan", description=__doc__)
    parser.add_argument("--rate", default="300mbit", help="of the link, as tc writes it; up to 300mbit was tried")
    parser.add_argument("--rtt", action="append", type=float, metavar="MS")
    parser.add_argument("--loss", action="append", type=float, metavar="P", help="part of the packets that is lost")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/wan.json"))
    options = parser.parse_args()
    rates: dict[str, dict[str, float]] = {}
    for rtt, loss in product(options.rtt or (50.0, 100.0), options.loss or (0.0, 0.001)):
        with Netlab(hosts=2, rate=options.rate, distance=Distance.of(rtt, loss)) as lab:
            rates[f"{rtt:g} ms, {100 * loss:g} %"] = measured(lab, options.rounds)
    table = Table(title=f"Mbit/s of gradients each way, two hosts at {options.rate}")
    for title in ("", *rates):
        table.add_column(title, justify="right")
    for name in next(iter(rates.values())):
        table.add_row(name, *(f"{of_case[name] / 1e6:.1f}" for of_case in rates.values()))
    Console(width=120).print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    kept = {"machine": machine.describe(), "rate": options.rate, "rounds": options.rounds, "bits_per_second": rates}
    options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
