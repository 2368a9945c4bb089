"""Runs every kind of test one after the other and ends with one line: `N passed, N failed, N skipped`.

A failing section does not stop the next, so one run shows all that is wrong. Counts come from the JUnit files that the
runners write under build/results; a section that fails without counting a failure (a crash, silence for five minutes)
counts as one.

    python tools/test_all.py --build build/release [--everyday | --rest] [--only cpp] [--only mpi-2]

`make test` runs the sections marked everyday, without the tests marked slow; `make test-rest` runs what that leaves
out, and `make test-all` everything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watch import run_watched

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
LISTED = 20  # failed tests
LAST_LINES = 12  # of a section that failed and has no tests with names


@dataclass(frozen=True)
class Job:
    """Tests that all ranks run together, in one environment."""

    name: str
    environment: str
    frameworks: str  # that the suite of all adaptors is run for
    folders: tuple[str, ...]
    sizes: tuple[int, ...]
    transport: str = "auto"


ALL_ADAPTORS, TORCH, OTHERS = "tests/python/adaptor", "tests/python/mpi", "tests/python/frameworks"
# No test asks for more than three ranks. One, two, and five, which share two cores, show what the core makes of a
# number, by the adaptor that has least of its own. What another adaptor itself would make of them is seen at night.
JOBS = (
    Job("mpi", ".venv", "numpy,standin,torch", (ALL_ADAPTORS, TORCH), (3,)),
    Job("mpi", ".venv", "numpy", (ALL_ADAPTORS,), (1, 2, 5)),
    Job("tcp", ".venv", "numpy", (ALL_ADAPTORS,), (3,), transport="tcp"),
    Job("frameworks", "build/frameworks", "mxnet,tensorflow,tensorflow_graph", (ALL_ADAPTORS, OTHERS), (3,)),
    Job("jax", "build/jax", "jax", (ALL_ADAPTORS, OTHERS), (2,)),
)


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    command: tuple[str, ...]
    everyday: bool  # a part of `make test`
    has_slow: bool = False  # some of its tests are marked slow, and are no part of `make test`
    frameworks: str = ""  # that the suite of all adaptors is run for; "": all that are there
    transport: str = "auto"


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    skipped: int
    names: tuple[str, ...] = ()  # of failed tests, each with its ranks; without tests, the last lines of the output
    seconds: float = 0.0


def sections_of(jobs: Iterable[Job]) -> list[Section]:
    found = []
    for job in jobs:
        for size in job.sizes:
            name = f"{job.name}-{size}"
            python = sys.executable if job.environment == ".venv" else str(ROOT / job.environment / "bin" / "python")
            run = ("casyncrun", "-np", str(size), python, "tools/mpi_pytest.py", name, *job.folders)
            title = f"{job.frameworks.replace(',', ', ')}: {size} rank{'s' * (size > 1)}, {job.name}"
            of_everyday = size in (2, 3) and job.environment == ".venv"
            found.append(Section(name, title, run, of_everyday, frameworks=job.frameworks, transport=job.transport))
    return found


def sections(build: Path, which: str) -> list[Section]:
    """`which`: "everyday", "rest" or "all" of them."""
    python = sys.executable
    # Not `python -m pytest`: that puts the checkout first, where casync/ has no compiled modules.
    pytest = (str(Path(python).with_name("pytest")), "-q", "-ra")
    ctest = ("ctest", "--test-dir", str(build), "--output-on-failure", "--timeout", "300", "--parallel", "2")
    choice, labels = {
        "everyday": (("-m", "not slow"), ("-LE", "slow")),
        "rest": (("-m", "slow"), ("-L", "slow")),
        "all": ((), ()),
    }[which]
    ignored = (f"--ignore={folder}" for folder in (ALL_ADAPTORS, TORCH, OTHERS))
    one_process = (*pytest, *choice, "-n2", "--dist=loadfile", "tests/python", *ignored)
    found = [
        Section("lint", "lint", (python, "tools/lint.py"), True),
        Section("cpp", "C++ tests", (*ctest, *labels, "--output-junit", str(RESULTS / "cpp.xml")), True, True),
        Section("counts", "what a step costs", (python, "tools/counts.py", "--build", str(build)), True),
        Section(
            "python", "Python tests, one process", (*one_process, f"--junitxml={RESULTS / 'python.xml'}"), True, True
        ),
    ]
    found += sections_of(JOBS)
    folders = ("mxnet", "keras_backends", "examples", "programs")
    own = (*(f"tests/python/{folder}" for folder in folders), "-k", "mxnet or keras")
    with_frameworks = (str(ROOT / "build/frameworks/bin/python"), *pytest, "-n2", "--dist=loadfile", *own)
    with_jax = (str(ROOT / "build/jax/bin/python"), *pytest, "tests/python/jax")
    found += [
        Section("own", "MXNet, Keras: two processes", (*with_frameworks, f"--junitxml={RESULTS / 'own.xml'}"), False),
        Section("arrays", "JAX's arrays, one process", (*with_jax, f"--junitxml={RESULTS / 'arrays.xml'}"), False),
        Section("docs", "the manual, without warnings", ("make", "--no-print-directory", "docs"), False),
        Section("install", "sdist, wheel, two ranks in a bare place", (python, "tools/check_install.py"), True),
        Section("readme", "the README's commands, word for word", (python, "tools/check_readme.py"), False),
    ]
    if which == "everyday":
        return [section for section in found if section.everyday]
    return [section for section in found if which == "all" or not section.everyday or section.has_slow]


def count(reports: Iterable[Path]) -> Outcome:
    """One outcome per test name: with several reports (one per rank), a test failed if it failed on any rank."""
    worst: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    for report in reports:
        rank = re.search(r"-rank(\d+)$", report.stem)
        for case in ET.parse(report).iter("testcase"):
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
                grade = 2
                failed.setdefault(name, []).extend([rank[1]] if rank else [])
            else:
                grade = 0 if case.find("skipped") is not None else 1
            worst[name] = max(worst.get(name, 0), grade)
    grades = list(worst.values())
    names = tuple(f"{name}{ranks_of(ranks)}" for name, ranks in failed.items())
    return Outcome(grades.count(1), grades.count(2), grades.count(0), names)


def ranks_of(ranks: Sequence[str]) -> str:
    if not ranks:
        return ""
    return f" (rank{'s' * (len(ranks) > 1)} {', '.join(ranks)})"


def in_short(outcomes: Mapping[Section, Outcome]) -> list[str]:
    """The last lines of all: what was counted, and what failed. The end of a long record is enough to know it."""
    lines = []
    for section, outcome in outcomes.items():
        counts = f"{outcome.passed:5} passed {outcome.failed:4} failed {outcome.skipped:4} skipped"
        lines.append(f"{section.title:42} {counts} {outcome.seconds:7.1f} s")
    failed = []
    for section, outcome in outcomes.items():
        failed += [f"failed: {section.name}: {name}" for name in outcome.names]
    lines += failed[:LISTED]
    if len(failed) > LISTED:
        lines[-1] = f"failed: {len(failed) - LISTED + 1} more"
    passed, broken, skipped = (sum(getattr(o, k) for o in outcomes.values()) for k in ("passed", "failed", "skipped"))
    return [*lines, f"{passed} passed, {broken} failed, {skipped} skipped"]


def run(section: Section) -> Outcome:
    print(f"\n=== {section.title}", flush=True)
    begin = time.monotonic()
    os.environ["CASYNC_TEST_RUNNING"] = str(RESULTS / section.name)
    os.environ["CASYNC_TEST_FRAMEWORK"] = section.frameworks
    os.environ["CASYNC_TRANSPORT"] = section.transport
    status, last_lines = run_watched(section.name, section.command, ROOT, RESULTS)
    reports = sorted([*RESULTS.glob(f"{section.name}.xml"), *RESULTS.glob(f"{section.name}-rank*.xml")])
    found = count(reports) if reports else Outcome(int(status == 0), 0, 0)
    failed = found.failed or int(status != 0)
    if failed:
        for log in sorted(RESULTS.glob(f"{section.name}-rank*.log")):
            print(f"--- {log.relative_to(ROOT)}\n{log.read_text(errors='replace')}", flush=True)
    if status and not found.names:  # lint, a build and an installation have no tests with names
        found = replace(found, names=tuple(last_lines[-LAST_LINES:]))
    return replace(found, failed=failed, seconds=time.monotonic() - begin)


def run_all(offered: Sequence[Section], only: Sequence[str] | None, parser: argparse.ArgumentParser) -> int:
    """Those of them that `only` names, or all; the exit status."""
    chosen = [section for section in offered if not only or section.name in only]
    if not chosen:
        parser.error(f"no section is named {', '.join(only or ())}")
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    outcomes = {section: run(section) for section in chosen}
    lines = in_short(outcomes)
    print("\n=== in short", *lines, sep="\n", flush=True)
    with open(ROOT / "build" / "in_short.txt", "a", encoding="utf-8") as record:
        record.write("\n".join(lines) + "\n")
    return int(any(outcome.failed for outcome in outcomes.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="CMake's build folder")
    parser.add_argument("--only", action="append", metavar="SECTION", help="lint, cpp, python, ..., readme")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--everyday", action="store_const", dest="which", const="everyday", help="what `make test` runs"
    )
    choice.add_argument("--rest", action="store_const", dest="which", const="rest", help="what that leaves")
    parser.set_defaults(which="all")
    options = parser.parse_args()
    return run_all(sections(options.build, options.which), options.only, parser)


if __name__ == "__main__":
    sys.exit(main())
