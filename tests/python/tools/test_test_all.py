"""What the end of `make test-all` says: counts, and the names of what failed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from support.files import ROOT

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "tools")
    test_all = importlib.import_module("test_all")
    nightly = importlib.import_module("nightly")


def report(path: Path, **outcomes: str) -> Path:
    """A JUnit file of tests of one module; each outcome is an element inside the test's, or none."""
    cases = "".join(
        f'<testcase classname="tests.of_it" name="{name}">{f"<{what}/>" if what else ""}</testcase>'
        for name, what in outcomes.items()
    )
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", encoding="utf-8")
    return path


def section(name: str) -> object:
    (found,) = (one for one in test_all.sections(Path("build"), "all") if one.name == name)
    return found


def test_a_test_of_several_ranks_is_one_and_says_on_which_it_failed(tmp_path: Path) -> None:
    reports = [
        report(tmp_path / "mpi-3-rank0.xml", well="", bad="failure", torn="error", left="skipped"),
        report(tmp_path / "mpi-3-rank1.xml", well="", bad="", torn="", left="skipped"),
        report(tmp_path / "mpi-3-rank2.xml", well="", bad="failure", torn="", left="skipped"),
    ]
    found = test_all.count(reports)
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)
    assert found.names == ("tests.of_it::bad (ranks 0, 2)", "tests.of_it::torn (rank 0)")


def test_the_last_lines_name_what_failed_in_each_section(tmp_path: Path) -> None:
    python = test_all.count([report(tmp_path / "python.xml", one="", two="failure")])
    outcomes = {
        section("python"): python,
        section("frameworks-3"): test_all.count([report(tmp_path / "frameworks-3-rank1.xml", three="failure")]),
        section("docs"): test_all.Outcome(0, 1, 0, ("a page has no title",)),
    }
    assert test_all.in_short(outcomes)[3:] == [
        "failed: python: tests.of_it::two",
        "failed: frameworks-3: tests.of_it::three (rank 1)",
        "failed: docs: a page has no title",
        "1 passed, 3 failed, 0 skipped",
    ]


def test_a_section_without_tests_says_its_last_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(test_all, "RESULTS", tmp_path)
    program = "print(*range(100), 'a finding', sep='\\n'); raise SystemExit(1)"
    one = test_all.Section("lint", "lint", (sys.executable, "-c", program), True)
    found = test_all.run(one)
    assert (found.passed, found.failed) == (0, 1)
    assert found.names[-2:] == ("99", "a finding") and len(found.names) == test_all.LAST_LINES


def test_no_more_than_twenty_are_named(tmp_path: Path) -> None:
    for count, last in ((20, "failed: python: tests.of_it::t19"), (21, "failed: 2 more"), (500, "failed: 481 more")):
        failed = dict.fromkeys((f"t{number}" for number in range(count)), "failure")
        *lines, total = test_all.in_short({section("python"): test_all.count([report(tmp_path / "r.xml", **failed)])})
        assert len(lines) == 1 + 20 and lines[-1] == last and total == f"0 passed, {count} failed, 0 skipped"


def test_every_folder_of_tests_is_in_a_section() -> None:
    words = [word for one in test_all.sections(Path("build"), "all") for word in one.command]
    ignored = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    assert ignored and ignored <= set(words)
    assert all((ROOT / folder).is_dir() for folder in ignored)


def test_all_adaptors_run_with_an_odd_number_of_ranks_and_at_night_with_one() -> None:
    sizes: dict[str, set[int]] = {}
    for one in test_all.sections(Path("build"), "all"):
        if found := re.search(r"-(\d+)$", one.name):
            assert one.command[:3] == ("casyncrun", "-np", found[1])
            for framework in one.frameworks.split(","):
                sizes.setdefault(framework, set()).add(int(found[1]))
    adaptors = ("standin", "torch", "mxnet", "tensorflow")
    assert all(3 in sizes[name] for name in adaptors)
    assert {1, 2, 3, 5} <= sizes["numpy"]
    at_night = [one for one in nightly.sections(Path("build")) if one.name.startswith("every") and "-1" in one.name]
    assert {*adaptors, "jax"} <= {name for one in at_night for name in one.frameworks.split(",")}


def test_everyday_and_the_rest_are_all() -> None:
    def commands(which: str) -> dict[str, tuple[str, ...]]:
        return {one.name: one.command for one in test_all.sections(Path("build"), which)}

    everyday, rest, every = commands("everyday"), commands("rest"), commands("all")
    assert everyday.keys() | rest.keys() == every.keys()
    assert everyday.keys() & rest.keys() == {"cpp", "python"}
    for name in ("cpp", "python"):
        assert "not slow" in everyday[name] or "-LE" in everyday[name]
        assert len(rest[name]) == len(everyday[name]) == len(every[name]) + 2


def test_make_test_needs_nothing_but_its_own_environment() -> None:
    for one in test_all.sections(Path("build"), "everyday"):
        assert not any("build/frameworks" in word or "build/jax" in word for word in one.command), one.name
