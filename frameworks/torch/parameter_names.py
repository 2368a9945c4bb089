"""The names of an optimizer's parameters, under which ranks meet and checkpoints keep state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TypeVar

import torch
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError

__all__ = ["names_of", "numbered", "shapes_of", "unused"]

_P = TypeVar("_P", bound=torch.Tensor)


def numbered(group: int, index: int) -> str:
    """Return the name of a parameter that was given none."""
    return f"allreduce.noname.{group}.{index}"


def shapes_of(names: Mapping[_P, str]) -> dict[str, Shape]:
    """Name -> the shape that codecs see, which is that of two numbers for each complex one."""
    return {name: torch.view_as_real(p).shape if p.is_complex() else p.shape for p, name in names.items()}


def names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[torch.nn.Parameter, str]:
    """Parameter -> name, checked; numbered if the user gave none."""
    named = [] if named_parameters is None else list(named_parameters)
    if not all(isinstance(item, tuple) and len(item) == 2 for item in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    counts = Counter(name for name, _ in named)
    if duplicates := sorted(name for name, count in counts.items() if count > 1):
        raise InvalidArgumentError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    found = {parameter: name for name, parameter in named}
    if not named:
        groups = enumerate(optimizer.param_groups)
        return {p: numbered(g, i) for g, group in groups for i, p in enumerate(group["params"])}
    unnamed = [p for group in optimizer.param_groups for p in group["params"] if p not in found]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named. Shapes of those: "
            f"{', '.join(str(tuple(p.shape)) for p in unnamed)}"
        )
    return found


def unused(name: str, parameter: torch.nn.Parameter, names: MutableMapping[str, torch.nn.Parameter]) -> str:
    """`name` for `parameter`, or with a number after it if another one has it; `names` has it from then on."""
    number, free = 1, name
    while names.get(free, parameter) is not parameter:
        number += 1
        free = f"{name}.{number}"
    names[free] = parameter
    return free
