"""docs/interplay.md: what may be combined with CaSync, from the marks of the tests that hold it.

    @pytest.mark.interplay("gradient clipping", "DistributedOptimizer", "supported", "after `synchronize()`")

The tests are read, not run. A combination of WANTED without a test is an error, as is a mark that says something else.

    python tools/interplay.py          writes the file
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "interplay.md"

OPTIMIZER, HOOK, ALL = "DistributedOptimizer", "DDP hook", "all"
_BOTH = (OPTIMIZER, HOOK)
# What -> with what it must have a test, in the order of the table.
WANTED = {
    "gradient accumulation": _BOTH,
    "gradient clipping": _BOTH,
    "GradScaler": _BOTH,
    "autocast": (OPTIMIZER,),
    "bfloat16 and float16 parameters": _BOTH,
    "torch.compile": _BOTH,
    "several optimizers or models": _BOTH,
    "parameters without a gradient on some ranks": _BOTH,
    "frozen parameters": _BOTH,
    "parameters that leave or are replaced": (OPTIMIZER,),
    "shared parameters": _BOTH,
    "LBFGS and other closures": _BOTH,
    "sparse embeddings": _BOTH,
    "channels_last and other gradients that are not contiguous": _BOTH,
    "a hook that never fired": _BOTH,
    "gradients that a script changes too early": (OPTIMIZER,),
    "learning rate schedules": (OPTIMIZER,),
    "step hooks": (OPTIMIZER,),
    "wrapping twice": (OPTIMIZER,),
    "copy.deepcopy": (OPTIMIZER,),
    "pickle": (OPTIMIZER,),
    "buckets that DDP builds anew": (HOOK,),
    "fork after init, DataLoader workers": (ALL,),
    "Ctrl-C": (ALL,),
    "submits from several threads": (ALL,),
}
VERDICTS = ("supported", "refused")

HEAD = """\
# What goes together

Whatever a training script combines with CaSync either works, and a test says so, or is refused with an error that
names it. This table is made from the marks of those tests (`tools/interplay.py`), so each line is one that runs.

| what | with | | test |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Mark:
    what: str
    whom: str
    verdict: str
    note: str
    test: str


class BadMark(Exception):
    """A mark that the table has no place for, or a place without a mark."""


def marks_in(name: str, source: str) -> Iterator[Mark]:
    """Those of one file of tests."""
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        for decorator in function.decorator_list:
            if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.interplay"):
                continue
            said = [ast.literal_eval(argument) for argument in decorator.args]
            where = f"{name}: {function.name}"
            if not 3 <= len(said) <= 4 or decorator.keywords:
                raise BadMark(f"{where}: interplay(what, whom, supported or refused, note)")
            mark = Mark(*said[:3], said[3] if len(said) == 4 else "", function.name)
            if mark.whom not in WANTED.get(mark.what, ()) or mark.verdict not in VERDICTS:
                raise BadMark(f"{where}: {mark.what!r} with {mark.whom!r}, {mark.verdict!r}, is not in WANTED")
            yield mark


def collect(files: Mapping[str, str]) -> list[Mark]:
    """The marks of all files (name -> text). Raises `BadMark`, also for what has none."""
    marks = [mark for name, source in sorted(files.items()) for mark in marks_in(name, source)]
    held = {(mark.what, mark.whom) for mark in marks}
    missing = [f"{what} with {whom}" for what, wanted in WANTED.items() for whom in wanted if (what, whom) not in held]
    if missing:
        raise BadMark(f"no test is marked as that of {', '.join(missing)}")
    return marks


def table(marks: Iterable[Mark]) -> str:
    """One line for each thing that is said, with the tests that hold it."""
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    for mark in marks:
        lines.setdefault((mark.what, mark.whom, mark.verdict, mark.note), []).append(mark.test)
    whats, verdicts = list(WANTED), list(VERDICTS)
    rows = []
    for key in sorted(lines, key=lambda k: (whats.index(k[0]), WANTED[k[0]].index(k[1]), verdicts.index(k[2]), k[3])):
        what, whom, verdict, note = key
        said = f"{verdict}: {note}" if note else verdict
        whom = "anything" if whom == ALL else whom
        rows.append(f"| {what} | {whom} | {said} | {', '.join(f'`{test}`' for test in sorted(set(lines[key])))} |\n")
    return "".join(rows)


def document(root: Path = ROOT) -> str:
    """What docs/interplay.md must hold."""
    tests = root / "tests" / "python"
    files = {str(path.relative_to(tests)): path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    return HEAD + table(collect(files))


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
