"""The widths that parameters decide: code is generated for each choice of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from casync.compll import typed
from casync.compll.constants import evaluate
from casync.compll.types import Element
from casync.errors import NotAvailableError

__all__ = ["Choice", "choices_of", "widths_of"]

_LONGEST_INTERVAL = 65536


@dataclass(frozen=True)
class Choice:
    """`widths`: bits of each element type that parameters decide, by its name. `parameters`: those whose value a width
    is, so that they are constants in the code.
    """

    widths: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)

    def bits(self, element: Element) -> int:
        return self.widths[element.name] if element.bits is None else element.bits


def widths_of(codec: typed.Codec) -> dict[str, typed.Expression]:
    """The expressions of such widths in the payload, by the name of the type."""
    elements = [item.type.element for item in codec.payload]
    return {element.name: element.width for element in elements if element.bits is None}


def choices_of(codec: typed.Codec) -> list[Choice]:
    """All choices; one without anything where no parameter decides a width."""
    widths = widths_of(codec)
    combinations = product(*(_values(codec, width) for width in widths.values()))
    return [_choice(widths, dict(zip(widths, bits, strict=True))) for bits in combinations]


def _choice(widths: dict[str, typed.Expression], bits: dict[str, int]) -> Choice:
    inner = {name: _inner(width) for name, width in widths.items()}
    parameters = {width.name: bits[name] for name, width in inner.items() if isinstance(width, typed.Read)}
    return Choice(bits, parameters)


def _inner(expression: typed.Expression) -> typed.Expression:
    return _inner(expression.operand) if isinstance(expression, typed.Convert) else expression


def _values(codec: typed.Codec, width: typed.Expression) -> list[int]:
    """The widths that parameters may give, in the order in which the file has them."""
    found = dict.fromkeys(int(value) for each in _settings(codec) for value in evaluate(width, each))
    if not found:
        raise NotAvailableError(
            f"{codec.path}: code is generated for each width, and {width.text} may have any: say in {{}} or [] which "
            "values the parameter accepts"
        )
    return list(found)


def _settings(codec: typed.Codec) -> Iterator[dict[str, typed.Parameter]]:
    """The parameters; of each interval of integers every value by itself."""
    known = {parameter.name: parameter for parameter in codec.parameters}
    yield known
    for name, parameter in known.items():
        if parameter.interval and not parameter.element.floating:
            low, high = map(int, parameter.accepted)
            for value in range(low, min(high, low + _LONGEST_INTERVAL) + 1):
                yield {**known, name: replace(parameter, accepted=(value,), default=value, interval=False)}
