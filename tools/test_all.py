"""Runs every kind of test one after the other and ends with one line: `N passed, N failed, N skipped`.

A failing section does not stop the next, so one run shows all that is wrong. Counts come from the JUnit files that the
runners write under build/results; a section that fails without counting a failure (a crash, a timeout) counts as one.

    python tools/test_all.py --build build/release [--only cpp] [--only mpi-2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
WORLD_SIZES = (1, 2, 3, 5)


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    command: tuple[str, ...]
    seconds: float  # after which it counts as hanging


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    skipped: int
    seconds: float = 0.0


def sections(build: Path) -> list[Section]:
    python = sys.executable
    # Not `python -m pytest`: that puts the checkout first, where casync/ has no compiled modules.
    pytest = (str(Path(python).with_name("pytest")), "-q", "-ra")
    ctest = ("ctest", "--test-dir", str(build), "--output-on-failure", "--timeout", "300", "--parallel", "2")
    found = [
        Section("lint", "lint", (python, "tools/lint.py"), 120),
        Section("cpp", "C++ tests", (*ctest, "--output-junit", str(RESULTS / "cpp.xml")), 1200),
        Section(
            "python",
            "Python tests, one process",
            (*pytest, "tests/python", "--ignore=tests/python/mpi", f"--junitxml={RESULTS / 'python.xml'}"),
            1500,
        ),
    ]
    for size in WORLD_SIZES:
        name = f"mpi-{size}"
        run = ("casyncrun", "-np", str(size), python, "tools/mpi_pytest.py", name, "tests/python/mpi")
        found.append(Section(name, f"Python tests, {size} rank{'s' * (size > 1)} under mpirun", run, 900))
    found.append(Section("docs", "the manual, without warnings", ("make", "--no-print-directory", "docs"), 300))
    found.append(Section("wheel", "the wheel, where there is no compiler", (python, "tools/check_wheel.py"), 900))
    return found


def count(reports: Iterable[Path]) -> Outcome:
    """One outcome per test name: with several reports (one per rank), a test failed if it failed on any rank."""
    worst: dict[str, int] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
                grade = 2
            else:
                grade = 0 if case.find("skipped") is not None else 1
            worst[name] = max(worst.get(name, 0), grade)
    grades = list(worst.values())
    return Outcome(grades.count(1), grades.count(2), grades.count(0))


def run(section: Section) -> Outcome:
    print(f"\n=== {section.title}", flush=True)
    begin = time.monotonic()
    # A group of its own, so that a section that hangs ends with everything it started.
    process = subprocess.Popen(section.command, cwd=ROOT, start_new_session=True)
    try:
        status = process.wait(section.seconds)
    except subprocess.TimeoutExpired:
        print(f"{section.name}: not done after {section.seconds:.0f} s, ended", flush=True)
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        status = 124
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise
    reports = sorted([*RESULTS.glob(f"{section.name}.xml"), *RESULTS.glob(f"{section.name}-rank*.xml")])
    found = count(reports) if reports else Outcome(int(status == 0), 0, 0)
    failed = found.failed or int(status != 0)
    if failed:
        for log in sorted(RESULTS.glob(f"{section.name}-rank*.log")):
            print(f"--- {log.relative_to(ROOT)}\n{log.read_text(errors='replace')}", flush=True)
    return Outcome(found.passed, failed, found.skipped, time.monotonic() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="CMake's build folder")
    parser.add_argument("--only", action="append", metavar="SECTION", help="lint, cpp, python, mpi-1, ..., docs, wheel")
    options = parser.parse_args()
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    chosen = [section for section in sections(options.build) if not options.only or section.name in options.only]
    if not chosen:
        parser.error(f"no section is named {', '.join(options.only)}")
    outcomes = {section: run(section) for section in chosen}
    print("\n=== in short")
    for section, outcome in outcomes.items():
        counts = f"{outcome.passed:5} passed {outcome.failed:4} failed {outcome.skipped:4} skipped"
        print(f"{section.title:42} {counts} {outcome.seconds:7.1f} s")
    passed, failed, skipped = (sum(getattr(o, k) for o in outcomes.values()) for k in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
