"""Expressions and types as text, with the fewest parentheses that say the same."""

from __future__ import annotations

from casync.compll import tree

__all__ = ["expression", "type_name"]

_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_LEVEL = {operator: level for level, operators in enumerate(_LEVELS, 1) for operator in operators}
_CHOICE, _SUM, _UNARY, _POSTFIX = 0, _LEVEL["+"], len(_LEVELS) + 1, len(_LEVELS) + 2


def expression(node: tree.Expression) -> str:
    return _at(node, _CHOICE)


def type_name(node: tree.TypeName) -> str:
    width = "" if node.width is None else f"<{_at(node.width, _SUM)}>"
    return f"{node.element}{width}{'*' * node.stars}"


def _at(node: tree.Expression, level: int) -> str:
    """Return its text, in parentheses if it binds less than `level`."""
    text, own = _text(node)
    return text if own >= level else f"({text})"


def _list(nodes: tuple[tree.Expression, ...]) -> str:
    return ", ".join(map(expression, nodes))


def _text(node: tree.Expression) -> tuple[str, int]:
    """The text and how strongly it binds."""
    if isinstance(node, tree.Number):
        return node.text, _UNARY  # `(1).size`: `1.` would be a number
    if isinstance(node, tree.Name):
        return node.name, _POSTFIX
    if isinstance(node, tree.Member):
        return f"{_at(node.of, _POSTFIX)}.{node.name}", _POSTFIX
    if isinstance(node, tree.Index):
        return f"{_at(node.of, _POSTFIX)}[{expression(node.at)}]", _POSTFIX
    if isinstance(node, tree.Call):
        return f"{node.function}({_list(node.arguments)})", _POSTFIX
    if isinstance(node, tree.Draw):
        return f"{node.function}<{type_name(node.type)}>({_list(node.arguments)})", _POSTFIX
    if isinstance(node, tree.Unary):
        return f"{node.operator}{_at(node.operand, _UNARY)}", _UNARY
    if isinstance(node, tree.Cast):
        return f"({type_name(node.type)}){_at(node.operand, _UNARY)}", _UNARY
    if isinstance(node, tree.Binary):
        level = _LEVEL[node.operator]
        return f"{_at(node.left, level)} {node.operator} {_at(node.right, level + 1)}", level
    assert isinstance(node, tree.Choice)
    parts = (_at(node.condition, _CHOICE + 1), expression(node.yes), _at(node.no, _CHOICE))
    return f"{parts[0]} ? {parts[1]} : {parts[2]}", _CHOICE
