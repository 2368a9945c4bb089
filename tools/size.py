"""Counts the product: files, lines of code and the longest files, by part. Comments and blank lines do not count.

python tools/size.py                 what is checked out
python tools/size.py 727e95e HEAD    two revisions, side by side
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

PARTS = {
    "core": ("casync_core/",),
    "casync": ("casync/",),
    "frameworks": ("frameworks/",),
    "tests": ("tests/",),
    "benchmarks, tools, examples": ("benchmarks/", "tools/", "examples/"),
}
SOURCES = {".py", ".pyi", ".hpp", ".cc", ".h", ".c", ".cll"}
_CPP = re.compile(r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')", re.DOTALL)
_HASH = re.compile(r"#[^\n]*|(\"(?:\\.|[^\"\\\n])*\")")


def code_lines(name: str, text: str) -> int:
    """How many lines hold code."""
    if name.endswith((".py", ".pyi")):
        return _python_lines(text)
    pattern = _HASH if name.endswith(".cll") else _CPP
    bare = pattern.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
    return sum(bool(line.strip()) for line in bare.splitlines())


def _python_lines(text: str) -> int:
    tree = ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            value = getattr(statement, "value", None)
            is_text = (
                isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
            )
            if is_text:
                docstrings.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for at, line in lines if at not in docstrings)


def sources(revision: str) -> dict[str, str]:
    """The source files of a revision, by path."""
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if member.isfile() and PurePosixPath(member.name).suffix in SOURCES:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read().decode()
    return found


def by_part(files: Mapping[str, str]) -> dict[str, tuple[int, int, list[tuple[int, str]]]]:
    """Per part its files, its lines of code, and its three longest files."""
    table = {}
    for part, prefixes in PARTS.items():
        sizes = [(code_lines(name, text), name) for name, text in files.items() if name.startswith(prefixes)]
        table[part] = (len(sizes), sum(size for size, _ in sizes), sorted(sizes, reverse=True)[:3])
    return table


def main(revisions: Sequence[str]) -> None:
    tables = {revision: by_part(sources(revision)) for revision in revisions or ["HEAD"]}
    for part in PARTS:
        for revision, table in tables.items():
            files, lines, longest = table[part]
            names = ", ".join(f"{name} {size}" for size, name in longest)
            print(f"{part:28} {revision:10} {files:5} files {lines:7,} lines   {names}")


if __name__ == "__main__":
    main(sys.argv[1:])
