"""The errors that a CompLL file can have.

One is shown as::

    onebit.cll:7:12: undefined name `maen`
        return maen;
               ^^^^
    expected: a variable, a parameter (params.x) or a read-only value: cols lr momentum ...
"""

from __future__ import annotations

from casync.compll.tree import Node, Span
from casync.errors import InvalidArgumentError

__all__ = ["KINDS", "CompllError", "fail"]

# Every kind has an example with its text under tests/compll/diagnostics; a test holds the two lists together.
KINDS = frozenset(
    {
        # the text
        "character",
        "syntax",
        "semicolon",
        "loop",
        "nesting",
        "number",
        # names
        "undefined-name",
        "undefined-function",
        "unused-name",
        "redefined",
        "reserved-name",
        "not-assignable",
        "unassigned",
        # types and shapes
        "type",
        "width",
        "condition",
        "argument-count",
        "function-argument",
        "reduce-start",
        "length",
        "result-count",
        "index",
        "member",
        "draw",
        # functions
        "signature",
        "missing-return",
        "return-values",
        "recursion",
        "statement-place",
        "no-encode",
        # rounds
        "aggregate-place",
        "aggregate-value",
        # the payload
        "concat-place",
        "concat-value",
        "extract-place",
        "extract-agreement",
        "decode-reads-local",
        "output-unset",
        "reduce-payload",
        # declarations
        "param-domain",
        "constant",
        "state",
        "property-name",
        "property-value",
        "feedback",
        "bound",
    }
)


class CompllError(InvalidArgumentError):
    """A CompLL file that does not mean anything. `finding` is one of KINDS; the text shows the place and what was
    expected there.
    """

    def __init__(self, finding: str, message: str, expected: str, span: Span, text: str, path: str) -> None:
        assert finding in KINDS, finding
        self.finding = finding
        self.span = span
        line = text.split("\n")[span.line - 1].rstrip("\r") if text else ""
        shown = line.expandtabs(1)
        marks = max(1, min(span.end - span.start, len(shown) - span.column + 1))
        caret = " " * (span.column - 1) + "^" * marks
        place = f"{path}:{span.line}:{span.column}"
        super().__init__(f"{place}: {message}\n    {shown}\n    {caret}\nexpected: {expected}")
        self._made_of = (finding, message, expected, span, text, path)

    def __reduce__(self) -> tuple[type[CompllError], tuple[object, ...]]:
        """So that it comes back from a worker of `casync.run`."""
        return CompllError, self._made_of


class Located(Exception):
    """A finding on its way to where the file is known; parse and check_program turn it into a CompllError."""

    def __init__(self, finding: str, message: str, expected: str, span: Span) -> None:
        super().__init__(message)
        self.finding, self.message, self.expected, self.span = finding, message, expected, span

    def in_file(self, text: str, path: str) -> CompllError:
        return CompllError(self.finding, self.message, self.expected, self.span, text, path)


def fail(finding: str, at: Node | Span, message: str, expected: str) -> Located:
    """The error to raise: `raise fail("type", node, "...", "...")`."""
    return Located(finding, message, expected, at.span if isinstance(at, Node) else at)
