"""Numbers of calls, which are the same on all ranks, and the names that are made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from casync._constants import OP_KINDS
from casync.tensors.signature import bad_name

__all__ = ["CallNumbers", "is_numbered"]

_NAMES_PER_KIND = 4096
_NUMBERED: Final = re.compile(r"[a-z]+\.noname\.[0-9]+(\.[0-9]+)?")


def is_numbered(name: str) -> bool:
    """Whether `CallNumbers.tensor_name` made the name, for one tensor or for those of a group."""
    return _NUMBERED.fullmatch(name) is not None


class CallNumbers:
    """The numbers of one session, by series. Ranks that make the same calls in the same order get the same numbers."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._started: set[str] = set()
        """The series that `start` was called for."""

    def next(self, series: str) -> int:
        """0, 1, 2, ...: one more at each call with the same `series`."""
        number = self._next.get(series, 0)
        self._next[series] = number + 1
        return number

    def start(self, series: str) -> None:
        """Have `series` begin at 0 again, if this rank has started it before: for what is made anew. At first it goes
        on from what `skip` has brought of ranks that came here earlier.
        """
        if series in self._started:
            self._next[series] = 0
        self._started.add(series)

    def all(self) -> dict[str, int]:
        """Return what `next` would return, for every series that was begun."""
        return dict(self._next)

    def skip(self, others: Mapping[str, int]) -> None:
        """Go on from the numbers of another rank, where they are higher than ours: from its `all()`."""
        for series, number in others.items():
            self._next[series] = max(number, self._next.get(series, 0))

    def tensor_name(self, kind: int, name: str | None) -> str:
        """The name under which ranks meet: `allreduce.<name>`, or `allreduce.noname.<N>` for the N-th that has none.

        N starts again after 4096, so that a loop of unnamed operations is negotiated once and does not grow without
        end.
        """
        prefix = OP_KINDS[kind]
        if name is None:
            return f"{prefix}.noname.{self.next(prefix) % _NAMES_PER_KIND}"
        try:
            return name if name.startswith(f"{prefix}.") else f"{prefix}.{name}"
        except (AttributeError, TypeError):
            raise bad_name(name) from None
