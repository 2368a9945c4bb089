"""Which gradients of an optimizer are submitted together: Horovod's `groups=` and `num_groups=`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from casync.errors import InvalidArgumentError

__all__ = ["Group", "Groups", "by_name", "wanted_groups"]

Wanted = int | list[list[Any]]
"""How many groups, 0 for none; or the groups."""
P = TypeVar("P", bound=Hashable)


def wanted_groups(num_groups: int, groups: Any, is_parameter: type[Any]) -> Wanted:
    """The two arguments as one. Raises `InvalidArgumentError` for what is neither a number nor lists of parameters, all
    of which are of the type `is_parameter`.
    """
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=4)
        if groups is None:
            groups = num_groups
    if groups is None:
        return 0
    if isinstance(groups, int) and groups >= 0:
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list | tuple) for group in groups):
        raise InvalidArgumentError(
            f"groups should be a non-negative integer or a list of list of {_of(is_parameter)}, not {_brief(groups)}"
        )
    seen: set[Any] = set()
    for group in groups:
        for parameter in group:
            if not isinstance(parameter, is_parameter):
                raise InvalidArgumentError(f"groups must consist of {_of(is_parameter)}, and holds {_brief(parameter)}")
            if parameter in seen:
                which = repr(parameter) if isinstance(parameter, str) else f"One of shape {tuple(parameter.shape)}"
                raise InvalidArgumentError(
                    f"A parameter can only appear once in groups. {which} appears more than once"
                )
            seen.add(parameter)
    return [list(group) for group in groups]


def by_name(groups: Any, name_of: Callable[[Any], str]) -> Any:
    """`groups=` with the names of parameters in the place of those, for frameworks whose parameters are no keys."""
    if not isinstance(groups, list):
        return groups
    return [[name_of(one) for one in group] if isinstance(group, list | tuple) else group for group in groups]


def _of(kind: type[Any]) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _brief(value: Any) -> str:
    return repr(value) if isinstance(value, int | str) else f"a {type(value).__name__}"


class Group(Generic[P]):
    """Parameters whose gradients are submitted when the last of them is there."""

    __slots__ = ("members", "ready")

    def __init__(self, members: Sequence[P] = ()) -> None:
        self.members = list(members)
        self.ready = 0

    def completed(self) -> bool:
        """Note that one more gradient is there; true with the last. Call it once for each gradient."""
        self.ready += 1
        return self.ready == len(self.members)


class Groups(Generic[P]):
    """The groups of one optimizer, made as its parameters come in."""

    def __init__(self, wanted: Wanted) -> None:
        self._number = wanted if isinstance(wanted, int) else 0
        self._of: dict[P, Group[P]] = {}
        for listed in wanted if isinstance(wanted, list) else ():
            group: Group[P] = Group()
            self._of.update(dict.fromkeys(listed, group))

    def join(self, new: Sequence[P]) -> list[Group[P] | None]:
        """The group of each; None: it goes alone. A number of groups splits what comes first into equal parts."""
        if self._number and new:
            return self._split(new)
        found = [self._of.get(parameter) for parameter in new]
        for parameter, group in zip(new, found, strict=True):
            if group is not None:
                group.members.append(parameter)
        return found

    def leave(self, gone: Sequence[P]) -> None:
        """Wait for these no more."""
        for parameter in gone:
            if (group := self._of.get(parameter)) is not None:
                group.members = [member for member in group.members if member is not parameter]

    def _split(self, new: Sequence[P]) -> list[Group[P] | None]:
        number, self._number = self._number, 0
        ends = [len(new) * (i + 1) // number for i in range(number)]
        groups = [Group(new[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
        self._of.update((parameter, group) for group in groups for parameter in group.members)
        return [group for group in groups for _ in group.members]
