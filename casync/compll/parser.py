"""Text to syntax tree: grammar.lark says what is a sentence, this file which node it becomes."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError
from lark.tree import Meta

from casync.compll import tree
from casync.compll.diagnostics import Located, fail
from casync.compll.tree import Program, Span

__all__ = ["MAX_NESTING", "parse"]

MAX_NESTING = 100

# How the terminals of the grammar are called in "expected: ...".
_WORDS = {
    "$END": "the end of the file",
    "ELEMENT": "a type",
    "UINT": "a type",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a text in quotes",
    "RANDOM": "random<...>",
    "TIMES": "an operator",
    "OR": "an operator",
    "AND": "an operator",
    "PIPE": "an operator",
    "CARET": "an operator",
    "AMPERSAND": "an operator",
    "EQUAL": "an operator",
    "COMPARE": "an operator",
    "LESS": "an operator",
    "MORE": "an operator",
    "SHIFT": "an operator",
    "PLUS": "an operator",
    "MINUS": "an operator",
    "QMARK": "an operator",
    "STAR": "`*`",
    "NOT": "an operator",
}
# The grammar's own words could stand for a name where nothing else fits; then the next use of the name would not parse.
_RESERVED = frozenset("if else return void param properties state in as uint random shared_random".split())
_LOOPS = frozenset("for while do goto switch break continue".split())
_ELEMENT = re.compile(r"u?int(1|2|4|8|16|32)|float|half|bfloat16")
_COMMENT = re.compile(r'"[^"\n]*"|(//[^\n]*|/\*[\s\S]*?\*/)')


def parse(text: str, path: str = "<text>") -> Program:
    """The syntax tree of `text`. Raises CompllError."""
    try:
        parsed = _compiled().parse(text)
        _check_nesting(parsed)
        items = tuple(_Builder().transform(parsed))
    except UnexpectedInput as error:
        raise _syntax_error(error, text).in_file(text, path) from None
    except Located as error:
        raise error.in_file(text, path) from None
    except VisitError as error:  # an exception in the builder below
        if isinstance(error.orig_exc, Located):
            raise error.orig_exc.in_file(text, path) from None
        raise
    return Program(items, _comments(text), text, path)


@cache
def _compiled() -> Lark:
    grammar = resources.files("casync.compll").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        start="program",
        parser="lalr",
        lexer="contextual",
        propagate_positions=True,
        maybe_placeholders=True,
        lexer_callbacks={"NAME": _check_name},
    )


def _check_name(token: Token) -> Token:
    if token in _LOOPS:
        raise fail(
            "loop",
            _token_span(token),
            f"`{token}`: the language has no loops",
            "an operator over the array instead: map (each element), reduce (one value), filter (some elements), "
            "sort, or map(range(n), f)",
        )
    if token in _RESERVED or _ELEMENT.fullmatch(token):
        raise fail("reserved-name", _token_span(token), f"`{token}` is a word of the language", "another name")
    return token


def _comments(text: str) -> tuple[tree.Comment, ...]:
    found = []
    for match in _COMMENT.finditer(text):
        if match[1]:
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            found.append(tree.Comment(match[1].rstrip(), Span(match.start(), match.end(), line, column)))
    return tuple(found)


def _check_nesting(parsed: Tree[Token]) -> None:
    """Later passes recurse; a text of ten thousand minus signs must not end them with a RecursionError."""
    waiting = [(parsed, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_NESTING:
            raise fail("nesting", _span(node.meta), "too deep", f"at most {MAX_NESTING} levels of nesting")
        waiting += [(child, depth + 1) for child in node.children if isinstance(child, Tree)]


def _token_span(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0, token.line or 1, token.column or 1)


def _syntax_error(error: UnexpectedInput, text: str) -> Located:
    if isinstance(error, UnexpectedCharacters):
        start = error.pos_in_stream or 0  # never None here
        word = re.match(r"[A-Za-z0-9_.]+", text[start:])  # but of a kind that cannot stand here
        end = start + (len(word[0]) if word else 1)
        span = Span(start, end, error.line, error.column)
        known = text[start] in '()[]{}<>=+-*/%&|^!~?:;,."' or end > start + 1 or text[start].isalnum()
        if not known:
            return fail("character", span, f"unexpected `{text[start]}`", "a character of the language")
        return fail("syntax", span, f"unexpected `{text[start:end]}`", _expected(error.allowed or set()))
    assert isinstance(error, UnexpectedToken)
    token, expected = error.token, error.accepts or error.expected
    previous = error.token_history[-1] if error.token_history else None
    ended = token.type == "$END"
    if previous is not None and "SEMICOLON" in expected and (ended or token.line != previous.end_line):
        end = previous.end_pos or 0
        span = Span(end, end, previous.end_line or 1, previous.end_column or 1)
        return fail("semicolon", span, "this statement does not end", "`;`")
    if ended:
        at = len(text.rstrip())
        span = Span(at, at, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
        return fail("syntax", span, "the file ends too early", _expected(expected))
    return fail("syntax", _token_span(token), f"unexpected `{token}`", _expected(expected))


def _expected(terminals: set[str]) -> str:
    words = set()
    for terminal in terminals:
        if terminal in _WORDS:
            words.add(_WORDS[terminal])
        elif terminal not in ("COMMENT", "CONTINUED") and not terminal.startswith("__"):
            words.add(f"`{_compiled_pattern(terminal)}`")
    return " or ".join(sorted(words)) or "something else"


@cache
def _compiled_pattern(terminal: str) -> str:
    return next((t.pattern.value for t in _compiled().terminals if t.name == terminal), terminal)


def _span(meta: Meta) -> Span:
    return Span(meta.start_pos, meta.end_pos, meta.line, meta.column)


def _given(children: list[Any]) -> list[Any]:
    """Return `children` without the places of optional parts that are not there."""
    return [child for child in children if child is not None]


@v_args(meta=True)
class _Builder(Transformer[Token, Any]):
    """One method per rule of the grammar."""

    def program(self, meta: Meta, c: list[Any]) -> list[tree.Item]:
        return c

    # --- items

    def param_block(self, meta: Meta, c: list[Any]) -> tree.ParamBlock:
        return tree.ParamBlock(str(c[0]), tuple(c[1:]), span=_span(meta))

    def field(self, meta: Meta, c: list[Any]) -> tree.Field:
        return tree.Field(c[0], str(c[1]), c[2], c[3], span=_span(meta))

    def domain_set(self, meta: Meta, c: list[Any]) -> tree.Limits:
        return tree.Limits(tuple(_given(c)), False, span=_span(meta))

    def domain_interval(self, meta: Meta, c: list[Any]) -> tree.Limits:
        return tree.Limits(tuple(c), True, span=_span(meta))

    def properties(self, meta: Meta, c: list[Any]) -> tree.Properties:
        return tree.Properties(tuple(c), span=_span(meta))

    def property(self, meta: Meta, c: list[Any]) -> tree.Property:
        return tree.Property(str(c[0]), c[1], span=_span(meta))

    def state(self, meta: Meta, c: list[Any]) -> tree.State:
        lengths, checkpoint = tuple(c[2:-2]), None if c[-1] is None else str(c[-1])[1:-1]
        return tree.State(c[0], str(c[1]), lengths, c[-2], checkpoint, span=_span(meta))

    def length(self, meta: Meta, c: list[Any]) -> tree.Expression:
        found: tree.Expression = c[0]
        return found

    def global_names(self, meta: Meta, c: list[Any]) -> tree.Global:
        return tree.Global(c[0], tuple(map(str, _given(c[1:]))), None, span=_span(meta))

    def global_value(self, meta: Meta, c: list[Any]) -> tree.Global:
        return tree.Global(c[0], (str(c[1]),), c[2], span=_span(meta))

    def function_void(self, meta: Meta, c: list[Any]) -> tree.Function:
        return tree.Function((), str(c[0]), c[1], c[2], span=_span(meta))

    def function_one(self, meta: Meta, c: list[Any]) -> tree.Function:
        return tree.Function((c[0],), str(c[1]), c[2], c[3], span=_span(meta))

    def function_several(self, meta: Meta, c: list[Any]) -> tree.Function:
        return tree.Function(tuple(c[:-3]), str(c[-3]), c[-2], c[-1], span=_span(meta))

    def arguments(self, meta: Meta, c: list[Any]) -> tuple[tree.Variable, ...]:
        return tuple(_given(c))

    def argument(self, meta: Meta, c: list[Any]) -> tree.Variable:
        type_ = c[0] if isinstance(c[0], tree.TypeName) else str(c[0])
        return tree.Variable(type_, str(c[1]), span=_span(meta))

    # --- statements

    def block(self, meta: Meta, c: list[Any]) -> tuple[tree.Statement, ...]:
        return tuple(c)

    def body(self, meta: Meta, c: list[Any]) -> tuple[tree.Statement, ...]:
        return c[0] if isinstance(c[0], tuple) else (c[0],)

    def declare(self, meta: Meta, c: list[Any]) -> tree.Declare:
        variables = [tree.Variable(c[0], str(c[1]), span=_between(c[0].span, _token_span(c[1])))]
        for type_, name in _given(c[2:-1]):
            span = _token_span(name) if type_ is None else _between(type_.span, _token_span(name))
            variables.append(tree.Variable(type_ or variables[-1].type, str(name), span=span))
        return tree.Declare(tuple(variables), c[-1], span=_span(meta))

    def declared(self, meta: Meta, c: list[Any]) -> tuple[tree.TypeName | None, Token]:
        return c[0], c[1]

    def assign(self, meta: Meta, c: list[Any]) -> tree.Assign:
        return tree.Assign(tuple(_given(c[:-1])), c[-1], span=_span(meta))

    def target(self, meta: Meta, c: list[Any]) -> tree.Target:
        return tree.Target(str(c[0]), c[1], span=_span(meta))

    def call_statement(self, meta: Meta, c: list[Any]) -> tree.CallStatement:
        return tree.CallStatement(self.call(meta, c), span=_span(meta))

    def conditional(self, meta: Meta, c: list[Any]) -> tree.If:
        return tree.If(c[0], c[1], c[2] or (), span=_span(meta))

    def return_statement(self, meta: Meta, c: list[Any]) -> tree.Return:
        return tree.Return(tuple(_given(c)), span=_span(meta))

    # --- types and expressions

    def type(self, meta: Meta, c: list[Any]) -> tree.TypeName:
        element, width = c[0]
        return tree.TypeName(element, width, len(c) - 1, span=_span(meta))

    def element(self, meta: Meta, c: list[Any]) -> tuple[str, tree.Expression | None]:
        return str(c[0]), c[-1] if len(c) > 1 else None

    def choice(self, meta: Meta, c: list[Any]) -> tree.Choice:
        return tree.Choice(c[0], c[1], c[2], span=_span(meta))

    def binary(self, meta: Meta, c: list[Any]) -> tree.Binary:
        return tree.Binary(str(c[1]), c[0], c[2], span=_span(meta))

    def unary(self, meta: Meta, c: list[Any]) -> tree.Unary:
        return tree.Unary(str(c[0]), c[1], span=_span(meta))

    def cast(self, meta: Meta, c: list[Any]) -> tree.Cast:
        return tree.Cast(c[0], c[1], span=_span(meta))

    def member(self, meta: Meta, c: list[Any]) -> tree.Member:
        return tree.Member(c[0], str(c[1]), span=_span(meta))

    def index(self, meta: Meta, c: list[Any]) -> tree.Index:
        return tree.Index(c[0], c[1], span=_span(meta))

    def number(self, meta: Meta, c: list[Any]) -> tree.Number:
        return tree.Number(str(c[0]), span=_span(meta))

    def name(self, meta: Meta, c: list[Any]) -> tree.Name:
        return tree.Name(str(c[0]), span=_span(meta))

    def call(self, meta: Meta, c: list[Any]) -> tree.Call:
        return tree.Call(str(c[0]), tuple(_given(c[1:])), span=_span(meta))

    def draw(self, meta: Meta, c: list[Any]) -> tree.Draw:
        return tree.Draw(str(c[0]), c[1], tuple(_given(c[2:])), span=_span(meta))


def _between(first: Span, last: Span) -> Span:
    return Span(first.start, last.end, first.line, first.column)
