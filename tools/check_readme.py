"""Runs the commands of README.md word for word, as somebody does who has a clone and a fresh environment with torch.

A command is a line of a block marked ```bash, or words in backticks that begin with one of `PROGRAMS`. `make` and
`pip` run in the clone, everything else in an empty folder beside it, in which the README's first program that calls
`hvd.init()` is saved as train.py. What cannot run here must match one of `SUBSTITUTES`, which say why, and what runs in
its place. Blocks without a language are refused: nobody would know whether they hold commands.

    python tools/check_readme.py          runs them
    python tools/check_readme.py --list   says what would run
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from check_install import torch_requirement
from fresh import ROOT, clean_environment, copy_tracked_files, make_environment, run

__all__ = ["ReadmeError", "Step", "blocks", "commands", "program", "step_for"]

SCRATCH = ROOT / "build" / "readme"
PROGRAMS = ("make", "pip", "python", "casync", "casyncrun", "git", "cd", "mpirun", "torchrun", "sbatch", "srun")
IN_THE_CLONE = ("make", "pip")


class ReadmeError(Exception):
    """The README holds what this cannot run."""


@dataclass(frozen=True)
class Substitute:
    """Commands that match `pattern` do not run as they stand. `instead` does, a template of `re.Match.expand`."""

    pattern: str
    instead: str
    why: str


SUBSTITUTES = (
    Substitute(
        r"make (.*)",
        r"make -n >/dev/null \1",
        "it takes long: that make knows the target is all that is tried",
    ),
    Substitute(
        r"casyncrun (.*(?:-H|--hosts|--hostfile)[ =].*)",
        r"casyncrun --dry-run \1",
        "the hosts are the reader's: the command line is composed and not started",
    ),
)


@dataclass(frozen=True)
class Step:
    """One command of the README, and what is run for it."""

    written: str
    command: str
    in_the_clone: bool
    why: str = ""


_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, body) of each fenced block."""
    for match in _BLOCK.finditer(text):
        yield match[1].strip(), match[2]


def program(text: str) -> str:
    """The README's program: the first Python block that calls `hvd.init()`."""
    for language, body in blocks(text):
        if language == "python" and "hvd.init()" in body:
            return body
    raise ReadmeError("no Python block of the README calls hvd.init(): there is no program to save as train.py")


def commands(text: str) -> list[str]:
    """Every command, in the order of the page and once each."""
    if unmarked := [body for language, body in blocks(text) if not language]:
        raise ReadmeError(f"a block without a language (bash, python, text): {unmarked[0]!r}")
    if other := [language for language, _ in blocks(text) if language in ("sh", "shell", "console")]:
        raise ReadmeError(f"a block of commands is marked {other[0]}: mark it bash")
    found: list[str] = []
    for match in re.finditer(rf"{_BLOCK.pattern}|`([^`\n]+)`", text, re.MULTILINE | re.DOTALL):
        language, body, words = match[1], match[2], match[3]
        if words is not None:
            found += [words] if words.split()[0] in PROGRAMS and " " in words.strip() else []
        elif language.strip() == "bash":
            lines = (line.strip() for line in body.splitlines())
            found += [line for line in lines if line and not line.startswith("#")]
    return list(dict.fromkeys(found))


def step_for(written: str) -> Step:
    """What is run for a command."""
    first = written.split()[0]
    if first not in PROGRAMS:
        raise ReadmeError(f"`{written}` begins with none of the programs that tools/check_readme.py can run")
    for substitute in SUBSTITUTES:
        if match := re.fullmatch(substitute.pattern, written):
            return Step(written, match.expand(substitute.instead), first in IN_THE_CLONE, substitute.why)
    return Step(written, written, first in IN_THE_CLONE)


def main() -> int:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    try:
        steps, train = [step_for(written) for written in commands(text)], program(text)
    except ReadmeError as error:
        print(f"README.md: {error}")
        return 1
    if "--list" in sys.argv[1:]:
        for step in steps:
            print(step.command, f"# in place of `{step.written}`: {step.why}" if step.why else "", sep="  ")
        return 0
    clone, elsewhere, home = SCRATCH / "clone", SCRATCH / "elsewhere", SCRATCH / "env"
    copy_tracked_files(clone)
    shutil.rmtree(elsewhere, ignore_errors=True)
    elsewhere.mkdir(parents=True)
    (elsewhere / "train.py").write_text(train, encoding="utf-8")
    run([str(make_environment(home)), "-m", "pip", "install", "-q", *torch_requirement()])
    # As `source env/bin/activate` leaves it.
    environ = clean_environment(os.environ) | {"VIRTUAL_ENV": str(home)}
    environ["PATH"] = os.pathsep.join((str(home / "bin"), environ["PATH"]))
    failed = []
    steps.sort(key=lambda step: not step.written.startswith("pip "))  # a page may show a program before it is installed
    for step in steps:
        try:
            run(["bash", "-c", step.command], environ, cwd=clone if step.in_the_clone else elsewhere)
        except subprocess.CalledProcessError as error:
            failed.append(f"`{step.written}` of README.md ended with status {error.returncode}")
    print(*failed, sep="\n")
    print(f"{len(steps) - len(failed)} of {len(steps)} commands of README.md ran")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
