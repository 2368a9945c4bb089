"""The one way a file is laid out: a statement a line, 4 spaces, 100 columns, comments where they were.

A comment on a line of its own stays there; one behind a statement stays behind it if there is room. Formatting twice
changes nothing, and the tree of the result is that of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from casync.compll import tree
from casync.compll.show import expression, type_name

__all__ = ["COLUMNS", "INDENT", "format_program"]

COLUMNS = 100
INDENT = "    "


def format_program(program: tree.Program) -> str:
    printer = _Printer(program)
    for item in program.items:
        printer.item(item)
    printer.comments_before(len(program.text) + 1, "")
    return "".join(f"{line}\n" for line in printer.lines)


class _Printer:
    def __init__(self, program: tree.Program) -> None:
        self.text = program.text
        self.waiting = list(program.comments)
        self.lines: list[str] = []
        self.seen = 0  # of the text; what comes next follows from here
        self.at_start = True  # of the file or of a block: no empty line here
        self.apart = False  # an empty line goes before what comes next

    # --- lines and comments

    def line(self, node: tree.Node, text: str, indent: str) -> None:
        """Add the lines that `node` is printed as, with the comments before it, in it and behind it."""
        self.comments_before(node.span.start, indent)
        self.space(node.span.start)
        while self.waiting and self.waiting[0].span.start < node.span.end:
            self._comment(self.waiting.pop(0), indent)
        self.lines += wrapped(text, indent)
        self.seen = node.span.end
        self._comments_behind(node)

    def _comments_behind(self, node: tree.Node) -> None:
        """Add comments behind the node to its last line, as far as there is room. The others get lines of their own."""
        while self.waiting:
            comment = self.waiting[0]
            on_line = "\n" not in self.text[node.span.end : comment.span.start] + comment.text
            if not on_line or len(self.lines[-1]) + len(comment.text) + 2 > COLUMNS:
                return
            self.lines[-1] += f"  {comment.text}"
            self.seen = comment.span.end
            self.waiting.pop(0)

    def comments_before(self, position: int, indent: str) -> None:
        while self.waiting and self.waiting[0].span.start < position:
            comment = self.waiting.pop(0)
            self.space(comment.span.start)
            self._comment(comment, indent)
            self.seen = comment.span.end

    def _comment(self, comment: tree.Comment, indent: str) -> None:
        first, *more = comment.text.split("\n")
        self.lines += [indent + first.rstrip(), *(line.rstrip() for line in more)]

    def space(self, position: int) -> None:
        """One empty line where the text has some, and around blocks."""
        between = self.text[self.seen : position]
        if not self.at_start and (self.apart or re.search(r"\n[ \t\r\f]*\n", between)):
            self.lines.append("")
        self.at_start = self.apart = False

    # --- items

    def item(self, item: tree.Item) -> None:
        if isinstance(item, (tree.Global, tree.State)):
            self.line(item, _global(item), "")
            return
        self.apart = True
        self.comments_before(item.span.start, "")
        self.space(item.span.start)
        if isinstance(item, tree.ParamBlock):
            self._block(item, f"param {item.name} {{", [(field, _field(field)) for field in item.fields])
        elif isinstance(item, tree.Properties):
            entries = [(entry, f"{entry.name} = {expression(entry.value)};") for entry in item.entries]
            self._block(item, "properties {", entries)
        elif isinstance(item, tree.Function):
            self._open(_header(item), "")
            self.statements(item.body, INDENT)
            self._close(item, "")
        self.apart = True

    def _block(self, item: tree.Item, head: str, entries: Sequence[tuple[tree.Node, str]]) -> None:
        self._open(head, "")
        for node, text in entries:
            self.line(node, text, INDENT)
        self._close(item, "")

    def _open(self, head: str, indent: str) -> None:
        self.lines += wrapped(head, indent)
        self.at_start = True

    def _close(self, node: tree.Node, indent: str) -> None:
        self.comments_before(node.span.end, indent + INDENT)
        self.lines.append(indent + "}")
        self.at_start = False
        self.seen = node.span.end
        self._comments_behind(node)

    # --- statements

    def statements(self, body: tuple[tree.Statement, ...], indent: str) -> None:
        for statement in body:
            if isinstance(statement, tree.If):
                self._if(statement, indent)
            else:
                self.line(statement, _statement(statement), indent)

    def _if(self, node: tree.If, indent: str) -> None:
        self.comments_before(node.span.start, indent)
        self.space(node.span.start)
        self._open(f"if ({expression(node.condition)}) {{", indent)
        self.seen = node.condition.span.end
        rest: tree.If | None = node
        while rest is not None:
            self.statements(rest.then, indent + INDENT)
            otherwise = rest.otherwise
            rest = otherwise[0] if len(otherwise) == 1 and isinstance(otherwise[0], tree.If) else None
            if rest is not None:
                self._open(f"}} else if ({expression(rest.condition)}) {{", indent)
                self.seen = rest.condition.span.end
            elif otherwise:
                self._open("} else {", indent)
                self.statements(otherwise, indent + INDENT)
        self._close(node, indent)


def wrapped(text: str, indent: str) -> list[str]:
    """`text` in lines of at most COLUMNS, broken behind commas and operators, never in a text in quotes; in the second
    half of a line where the fewest brackets are open.
    """

    def brackets(at: int) -> int:
        return text.count("(", 0, at) - text.count(")", 0, at)

    lines, start = [], indent
    while len(start) + len(text) > COLUMNS:
        room = COLUMNS - len(start)
        breaks = [match.start() for match in re.finditer(r'"[^"]*"|( )', text) if match[1]]
        good = [at for at in breaks if at <= room and text[at - 1] in ",=+-*/%&|^<>?:"]
        possible = good or [at for at in breaks if at <= room] or breaks[:1]
        if not possible:
            break
        late = [at for at in possible if at > room // 2] or possible[-1:]
        chosen = min(reversed(late), key=brackets)
        lines.append(start + text[:chosen])
        text = text[chosen + 1 :]
        start = indent + 2 * INDENT
    return [*lines, start + text]


def _field(field: tree.Field) -> str:
    text = f"{type_name(field.type)} {field.name}"
    if field.default is not None:
        text += f" = {expression(field.default)}"
    if field.domain is not None:
        values = ", ".join(map(expression, field.domain.values))
        text += f" in [{values}]" if field.domain.interval else f" in {{{values}}}"
    return f"{text};"


def _global(item: tree.Global | tree.State) -> str:
    if isinstance(item, tree.Global):
        value = "" if item.value is None else f" = {expression(item.value)}"
        return f"{type_name(item.type)} {', '.join(item.names)}{value};"
    lengths = "".join(f"[{expression(length)}]" for length in item.lengths)
    saved = "" if item.checkpoint is None else f' as "{item.checkpoint}"'
    return f"state {type_name(item.type)} {item.name}{lengths} = {expression(item.initial)}{saved};"


def _header(item: tree.Function) -> str:
    results = ", ".join(map(type_name, item.results)) or "void"
    arguments = ", ".join(f"{_type(argument.type)} {argument.name}" for argument in item.arguments)
    return f"{results} {item.name}({arguments}) {{"


def _type(type_: tree.TypeName | str) -> str:
    return type_ if isinstance(type_, str) else type_name(type_)


def _statement(node: tree.Statement) -> str:
    if isinstance(node, tree.Declare):
        value = "" if node.value is None else f" = {expression(node.value)}"
        return f"{_variables(node.variables)}{value};"
    if isinstance(node, tree.Assign):
        return f"{', '.join(map(_target, node.targets))} = {expression(node.value)};"
    if isinstance(node, tree.CallStatement):
        return f"{expression(node.call)};"
    assert isinstance(node, tree.Return)
    return f"{' '.join(['return', ', '.join(map(expression, node.values))]).rstrip()};"


def _variables(variables: tuple[tree.Variable, ...]) -> str:
    """A type is written where it is not that of the name before."""
    parts = []
    for before, variable in zip((None, *variables), variables, strict=False):
        known = before is not None and before.type == variable.type
        parts.append(variable.name if known else f"{_type(variable.type)} {variable.name}")
    return ", ".join(parts)


def _target(target: tree.Target) -> str:
    return target.name if target.at is None else f"{target.name}[{expression(target.at)}]"
