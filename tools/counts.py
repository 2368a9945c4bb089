"""Holds what a step costs the core, in numbers that do not depend on the machine, to committed figures.

    python tools/counts.py --build build/release            exit status 1 if a number is 3 % up
    python tools/counts.py --build build/release --write    takes the numbers as the figures, and prints what changed

`tests/cpp/counts/step_counts` runs steps of fixed shape on four virtual ranks, in one thread. It prints messages,
bytes, tasks, turns and allocations. callgrind counts its instructions, where valgrind is there and the compiler is that
of the figures. A number is that of a step: a run of 12 steps less one of 2, by 10. The figures change in a commit of
their own, whose text names the cause.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "tests/cpp/counts/figures.json"
FEW, MANY = 2, 12  # steps
LIMIT = 1.03
Counts = Mapping[str, Mapping[str, float]]
"""By case and by what is counted."""


def counted(program: Path, case: str, steps: int, with_instructions: bool) -> dict[str, float]:
    command = [str(program), case, str(steps)]
    environ = {**os.environ, "CASYNC_ISA": "baseline"}  # which every processor and valgrind have
    if not with_instructions:
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout))
    callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run([*callgrind, *command], check=True, capture_output=True, text=True, env=environ)
    instructions = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert instructions is not None, done.stderr
    return {**json.loads(done.stdout), "instructions": float(instructions[1].replace(",", ""))}


def of_a_step(few: Mapping[str, float], many: Mapping[str, float]) -> dict[str, float]:
    return {name: (many[name] - few[name]) / (MANY - FEW) for name in many}


def grown(was: Counts, now: Counts, limit: float = LIMIT) -> list[str]:
    """What is more than `limit` times as much as it was, a line each. A case that is gone counts as grown."""
    lines = [f"{case}: no longer counted" for case in was if case not in now]
    for case, numbers in now.items():
        for name, value in numbers.items():
            before = was.get(case, {}).get(name)
            if before is not None and value > limit * before:
                lines.append(f"{case}: {name} of a step: {value:,.1f}, the figure is {before:,.1f}")
    return lines


def changes(was: Counts, now: Counts) -> list[str]:
    """All numbers that are other ones than before, for the text of a commit."""
    return [
        f"{case}: {name} {was.get(case, {}).get(name, 0):,.1f} -> {value:,.1f}"
        for case, numbers in now.items()
        for name, value in numbers.items()
        if was.get(case, {}).get(name) != value
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    program = given.build / "tests/cpp/counts/step_counts"
    compiler = subprocess.run([program, "compiler"], check=True, capture_output=True, text=True).stdout.strip()
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {"compiler": "", "step": {}}
    exact = shutil.which("valgrind") is not None and (given.write or compiler == figures["compiler"])
    if not exact:
        print(f"instructions are not counted: they want valgrind, and the compiler {figures['compiler']}")
    cases = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    now = {case: of_a_step(*(counted(program, case, steps, exact) for steps in (FEW, MANY))) for case in cases}
    if given.write:
        print(*changes(figures["step"], now), sep="\n")
        FIGURES.write_text(json.dumps({"compiler": compiler, "step": now}, indent=2) + "\n", encoding="utf-8")
        return 0
    for case, numbers in now.items():
        print(case, *(f"{name} {value:,.1f}" for name, value in numbers.items()), sep="  ")
    found = grown(figures["step"], now)
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
