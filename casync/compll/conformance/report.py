"""The report on what the kit found, a line for each check."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from casync.compll.conformance.contract import Info
from casync.compll.conformance.trial import Result

__all__ = ["heading", "report"]

_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("-", "yellow")}
_WIDTH = 18


def heading(info: Info) -> str:
    size = "fixed size" if info.fixed_size else "bounded size"
    whole = "; encodes the whole gradient" if info.whole else ""
    return f"{info.spec}: {' then '.join(info.rounds)}; feedback {info.feedback}; {size}{whole}"


def report(console: Console, results: Iterable[Result]) -> bool:
    """Prints each result when it is there; whether nothing failed."""
    passed = failed = 0
    for result in results:
        mark, style = _MARKS[result.passed]
        _line(console, Text.assemble((mark, style), f" {result.check:<{_WIDTH}}{result.seen}"))
        if result.passed is False and result.case:
            _line(console, Text(f"{'':{_WIDTH + 2}}in: {result.case}"))
        passed += result.passed is True
        failed += result.passed is False
    _line(console, Text(f"{failed} of {passed + failed} checks failed" if failed else f"all {passed} checks passed"))
    return failed == 0


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
