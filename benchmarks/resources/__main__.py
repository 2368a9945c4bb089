"""What CaSync costs when nothing happens, and what memory it takes when something does.

    python -m benchmarks.resources

Prints the processor time of an idle job of 4 ranks (all threads, mpirun and launcher included) and of three ranks that
wait in synchronize, both over 10 s as a share of one core; and the peak memory of a rank beyond a control process
without CaSync, as a share of the gradients, with one rank late.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ranks import command

SECONDS = 10.0


def start(folder: str, ranks: int, *words: str) -> subprocess.Popen[str]:
    job = command(ranks, "benchmarks.resources.worker", folder, *words)
    return subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=180)
    if process.returncode != 0:
        raise SystemExit(f"resources: a job failed\n{output}")


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def processor_seconds(pids: list[int]) -> float:
    """Of all threads. From the scheduler's own clock: /proc/PID/stat counts timer ticks, and threads that sleep until
    a timer wakes them are met by far too many or too few of those."""
    nanoseconds = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds * 1e-9


def share_of_core(mode: str, ranks: int) -> float:
    expected = ranks - (mode == "waiting")
    with tempfile.TemporaryDirectory() as folder:
        job = start(folder, ranks, mode)
        while len(list(Path(folder).glob("ready.*"))) < expected:
            if job.poll() is not None:
                finish(job)
            time.sleep(0.05)
        time.sleep(1.0)
        ready = [int(path.suffix[1:]) for path in Path(folder).glob("ready.*")]
        pids = ready if mode == "waiting" else descendants(job.pid)
        before, since = processor_seconds(pids), time.monotonic()
        time.sleep(SECONDS)
        used = processor_seconds(pids) - before
        share = used / (time.monotonic() - since)
        finish(job)
        return share


def peak_memory(ranks: int, codec: str, topology: str, mebibytes: int) -> tuple[int, int]:
    """High-water mark in KiB and own accounting in bytes, of the rank that needs most."""
    with tempfile.TemporaryDirectory() as folder:
        finish(start(folder, ranks, "memory", codec, topology, str(mebibytes), "2"))
        results = [json.loads(path.read_text()) for path in Path(folder).glob("memory.*")]
        return max(r["high_water_kib"] for r in results), max(r["accounted"] for r in results)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resources", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=400, help="gradients of a rank, for the memory figures")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/resources.json"))
    arguments = parser.parse_args()
    console = Console(width=120)
    figures: dict[str, float] = {}
    table = Table(title=f"processor time over {SECONDS:.0f} s, share of one core")
    table.add_column("job")
    table.add_column("share", justify="right")
    for mode, text in (
        ("idle", "4 idle ranks, all threads, mpirun, launcher"),
        ("waiting", "3 ranks waiting for the fourth"),
    ):
        figures[mode] = share_of_core(mode, 4)
        table.add_row(text, f"{figures[mode]:.2%}")
    console.print(table)
    table = Table(title=f"peak memory beyond {arguments.mebibytes} MiB of gradients, last rank 2 s late")
    for column in ("ranks", "codec", "topology", "VmHWM over control", "own accounting"):
        table.add_column(column, justify="right")
    size = arguments.mebibytes << 20
    for ranks in (2, 4):
        control, _ = peak_memory(ranks, "control", "auto", arguments.mebibytes)
        for codec, topology in (
            ("none", "ps"),
            ("none", "ring"),
            ("fp16", "ring"),
            ("onebit", "ps"),
            ("onebit", "ring"),
        ):
            peak, accounted = peak_memory(ranks, codec, topology, arguments.mebibytes)
            beyond = (peak - control) * 1024 / size
            figures[f"{ranks} {codec} {topology}"] = beyond
            table.add_row(str(ranks), codec, topology, f"{beyond:.3f}", f"{accounted / size:.3f}")
    console.print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
