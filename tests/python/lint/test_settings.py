"""A setting that a message or a page tells the user to change is one that something reads."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from casync.config.settings import Config
from casync.launcher.rank.place import rank_names

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"\bCASYNC_[A-Z][A-Z0-9_]*[A-Z0-9]\b")
CPP_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
BUILD = ("setup.py", "CMakeLists.txt", "Makefile", "cmake/*.cmake", "casync_core/CMakeLists.txt")


def texts() -> Iterator[tuple[str, str]]:
    """(file, text): each string of the sources, and the pages whole."""
    for folder in ("casync", "frameworks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path.relative_to(ROOT).as_posix(), node.value
    for suffix in ("*.cc", "*.hpp"):
        for path in sorted((ROOT / "casync_core").rglob(suffix)):
            for found in CPP_STRING.finditer(path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix(), found[1]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def known(found: list[tuple[str, str]]) -> set[str]:
    """Config's, the launcher's, the build's, macros, and what is looked up: a string that is nothing but the name."""
    names = {name for item in dataclasses.fields(Config) for name in item.metadata["variables"]}
    place = dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname"), 0)
    names |= set(rank_names(place, {}))
    names |= {text for file, text in found if not file.endswith(".md") and NAME.fullmatch(text)}
    names |= {name for _, text in found for name in re.findall(r"#define (\w+)", text)}
    for path in (ROOT / "casync_core").rglob("*.[ch]*"):
        code = re.sub(r"//.*", "", CPP_STRING.sub("", path.read_text(encoding="utf-8")))
        names |= set(NAME.findall(code))
    for pattern in BUILD:
        for path in ROOT.glob(pattern):
            names |= set(NAME.findall(path.read_text(encoding="utf-8")))
    return names


def test_every_setting_that_is_named_exists() -> None:
    found = list(texts())
    names = known(found)
    assert {"CASYNC_TIMEOUT_SECONDS", "CASYNC_RANK", "CASYNC_LAUNCHER", "CASYNC_WITH_MPI"} <= names
    unknown = {f"{file}: {name}" for file, text in found for name in NAME.findall(text) if name not in names}
    assert not unknown, sorted(unknown)
