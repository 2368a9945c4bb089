"""docs/interplay.md: what may be combined with CaSync, from the marks of the tests that hold it.

    @pytest.mark.interplay("gradient clipping", "DistributedOptimizer", "supported", "after `synchronize()`")

The tests are read, not run. A combination of WANTED without a test is an error, as is a mark that says something else.

The second table is of whole programs: a row for each situation and a column for each door. A program of
tests/python/programs says by its decorator for which cells it stands, and table.py there says which cells cannot exist.
A cell of which nothing is said is an error.

    python tools/interplay.py          writes the file
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


PROGRAMS = "programs/"  # in tests/python
PROGRAMS_HEAD = """
## Whole programs

Each cell of this table is a program of `tests/python/programs`, written as the manual of the framework says, that CI
runs on several ranks. **yes**: its numbers are those of one process that has all data, or of the same ranks with what
the framework itself does, within the error of float32; and with `onebit` all ranks end with the same bits. LocalSGD has
`sync_every=1` here: with SGD that is the mean of gradients, and with other optimizers its numbers are those of one
process that makes each rank's steps and averages. A number stands for a program that is refused with an error that
names the reason, before anything is wrong. A letter says why there is no such program. **no** is a fault that is known
and not mended yet.

"""


@dataclass(frozen=True)
class Cell:
    """What a program of the second table says of one door."""

    situation: str
    door: str
    verdict: str  # "right", "refused", "wrong", or "absent"
    why: str = ""
    module: str = ""
    program: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


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


# --- whole programs ---------------------------------------------------------------------------------------------------


def constants_of(source: str) -> dict[str, Any]:
    """The names that a module gives literals to."""
    found = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            try:
                found[ast.unparse(target)] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return found


def cells_in(name: str, source: str) -> Iterator[Cell]:
    """Those that the decorators of one module's programs name."""
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in function.decorator_list:
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) in ("right", "refused", "wrong")):
                continue
            said = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            situation, doors = map(ast.literal_eval, call.args)
            why = said.pop("why", "") or said.pop("fault", "")
            for door in doors.split():
                verdict = ast.unparse(call.func)
                yield Cell(situation, door, verdict, why, Path(name).stem, function.name, said)


def cells(files: Mapping[str, str]) -> list[Cell]:
    """All cells in the order of the table (name -> text, of which one is table.py). Raises `BadMark` for a cell of
    which nothing is said, or two things, and for what has no row or column.
    """
    said = constants_of(files["table.py"])
    situations, doors = list(said["SITUATIONS"]), list(said["DOORS"])
    found: dict[tuple[str, str], Cell] = {}
    given = [cell for name, source in sorted(files.items()) for cell in cells_in(name, source)]
    absent = [
        Cell(situation, door, "absent", why)
        for situation, reasons in said["ABSENT"].items()
        for named, why in reasons.items()
        for door in named.split()
    ]
    for cell in [*given, *absent]:
        key = (cell.situation, cell.door)
        if cell.situation not in situations or cell.door not in doors:
            raise BadMark(f"{cell.program or 'ABSENT'}: {key} is not in SITUATIONS and DOORS of table.py")
        if key in found:
            raise BadMark(f"{key}: {found[key].program or 'ABSENT'} and {cell.program or 'ABSENT'} both speak of it")
        found[key] = cell
    wanted = [(situation, door) for situation in situations for door in doors]
    if missing := [f"{situation} ({door})" for situation, door in wanted if (situation, door) not in found]:
        raise BadMark(f"no program, and no reason, for {', '.join(missing)}")
    return [found[key] for key in wanted]


def program_files(root: Path = ROOT) -> dict[str, str]:
    folder = root / "tests" / "python" / PROGRAMS
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}


def programs_table(files: Mapping[str, str]) -> str:
    """The second table, and below it the reasons."""
    doors: dict[str, str] = constants_of(files["table.py"])["DOORS"]
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    absent: dict[str, str] = {}
    rows: dict[str, list[str]] = {}
    for cell in cells(files):
        text = "yes"
        if cell.verdict == "refused":
            text = refused.setdefault(cell.why, str(len(refused) + 1))
        elif cell.verdict == "wrong":
            text = wrong.setdefault(cell.why, f"**no** ({len(wrong) + 1})")
        elif cell.verdict == "absent":
            text = absent.setdefault(cell.why, letters(len(absent)))
        rows.setdefault(cell.situation, []).append(text)
    head = f"| | {' | '.join(doors.values())} |\n|---{'|---' * len(doors)}|\n"
    lines = "".join(f"| {situation} | {' | '.join(texts)} |\n" for situation, texts in rows.items())
    said = [("Refused:", refused), ("Wrong today:", wrong), ("There is no such program:", absent)]
    reasons = "".join(
        f"\n{title}\n\n| | |\n|---|---|\n" + "".join(f"| {sign} | {why} |\n" for why, sign in whys.items())
        for title, whys in said
        if whys
    )
    return head + lines + reasons


def letters(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    first, last = divmod(number, 26)
    return ("" if not first else letters(first - 1)) + chr(ord("a") + last)


def document(root: Path = ROOT) -> str:
    """What docs/interplay.md must hold."""
    tests = root / "tests" / "python"
    files = {str(path.relative_to(tests)): path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    return HEAD + table(collect(files)) + PROGRAMS_HEAD + programs_table(program_files(root))


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
