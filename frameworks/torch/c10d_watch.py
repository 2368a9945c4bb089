"""Looks once a second at the calls of process groups that have not ended: see `c10d`.

Calls without names meet by what they are. So ranks that disagree wait for each other, and rank 0 of the group says in
the group's store what it waits for. Who waits for something else, which rank 0 has not called, while rank 0 waits for
what it has not called itself, ends the group on all ranks, with both calls.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from casync.errors import AbortedError, CasyncError, MismatchError, StallError

from .c10d_work import GroupWork

__all__ = ["Waiting", "difference", "translated", "watch"]

_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
_MOST_CALLS = 64
_KEY = "casync/waits"
_DISAGREE = "ranks disagree about what to call"
_TOO_LATE = "a call has not ended within the time-out that set_timeout() gave its group"


class Waiting(NamedTuple):
    """A call that waits for other ranks: its name, which is alike on those that have called it, and what to say."""

    name: str
    told: str


class Watched(Protocol):
    """A `Group`."""

    rank: int
    size: int
    limit_s: float | None

    def outstanding(self) -> list[GroupWork]: ...
    def store(self) -> Any: ...
    def give_up(self, why: str) -> None: ...


def difference(mine: Sequence[Waiting], theirs: Sequence[Waiting]) -> tuple[Waiting, Waiting] | None:
    """The first call of each side that the other has not made, if both wait for such a one."""
    my_names, their_names = {call.name for call in mine}, {call.name for call in theirs}
    only_mine = next((call for call in mine if call.name not in their_names), None)
    only_theirs = next((call for call in theirs if call.name not in my_names), None)
    return None if only_mine is None or only_theirs is None else (only_mine, only_theirs)


def translated(error: BaseException | None) -> BaseException | None:
    """The error that `give_up` has ended a call with, as what it is."""
    if isinstance(error, AbortedError):
        text = str(error)
        for mark, kind in ((_DISAGREE, MismatchError), (_TOO_LATE, StallError)):
            if mark in text:
                return kind(text[text.index(mark) :], tensor=error.tensor, op=error.op, rank=error.rank)
    return error


class _Watch:
    """The watch over one group."""

    def __init__(self, group: Watched) -> None:
        self._group = weakref.ref(group)
        self._beat = 0
        self._seen: tuple[int, tuple[Waiting, Waiting]] | None = None  # rank 0's beat, and how it differed then

    def look(self) -> bool:
        """Look at the group once, and return whether it still exists."""
        group = self._group()
        if group is None:
            return False
        works = group.outstanding()
        age = time.monotonic() - works[0].began if works else 0.0
        if group.limit_s is not None and age > group.limit_s:
            group.give_up(f"{_TOO_LATE}, {group.limit_s:g} s: rank {group.rank} waits in {_told(works[0]).told}")
        elif age > _PATIENCE_SECONDS and len({work.thread for work in works}) == 1:
            self._compare(group, [_told(work) for work in works[:_MOST_CALLS]])
        else:
            self._seen = None
        return True

    def _compare(self, group: Watched, mine: Sequence[Waiting]) -> None:
        if group.rank == 0:
            self._beat += 1
            group.store().set(_KEY, json.dumps([self._beat, mine]))
            return
        if not group.store().check([_KEY]):
            return
        beat, calls = json.loads(group.store().get(_KEY))
        found = difference(mine, [Waiting(*call) for call in calls])
        seen, self._seen = self._seen, None if found is None else (beat, found)
        if found is not None and seen is not None and seen[1] == found and beat > seen[0]:  # rank 0 has waited since
            group.give_up(
                f"{_DISAGREE}: rank {group.rank} of the group waits in {found[0].told}, and rank 0 in {found[1].told}. "
                "All ranks must make the same calls, with the same shapes, dtypes, operations and roots, in one order"
            )


def _told(work: GroupWork) -> Waiting:
    entry = work.entry
    if entry is None:
        return Waiting(work.name, work.kind)
    sizes = ", ".join(f"{dtype.lower()} {list(size)}" for size, dtype in entry.inputs[:4])
    code, line = entry.frames[0] if entry.frames else (None, 0)
    at = "" if code is None else f" at {code.co_filename}:{line}"
    return Waiting(work.name, f"{work.kind}{f' of {sizes}' if sizes else ''}{work.detail}{at}")


_watches: list[_Watch] = []
_lock = threading.Lock()
_thread: threading.Thread | None = None


def watch(group: Watched) -> None:
    """Look at `group` for as long as it lives."""
    global _thread
    with _lock:
        _watches.append(_Watch(group))
        if _thread is None or not _thread.is_alive():  # a child has none after a fork
            _thread = threading.Thread(target=_look, name="casync watch", daemon=True)
            _thread.start()


def _look() -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        with _lock:
            watches = list(_watches)
        gone = []
        for one in watches:
            with contextlib.suppress(CasyncError, RuntimeError, ValueError):  # the store is gone, or the session over
                if not one.look():
                    gone.append(one)
        with _lock:
            for one in gone:
                _watches.remove(one)
