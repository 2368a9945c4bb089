"""Which of several lives of a job in one store this is: those that meet agree on a word that no earlier life has had.

A store may outlive those who meet in it: torchrun's agent starts its ranks again, with or without counting, and a
program may leave a group and make it again. What earlier ones have left is still there to be read. So each process
leaves a card with a token. Rank 0 offers a word with the tokens that it sees, and a new one whenever a token changes. A
process whose token is in the offer accepts, and rank 0 says that it counts when all have: only who lives can accept.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from casync.rendezvous.stores import Store

__all__ = ["Missing", "Twin", "agree"]

_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.3
_ASK_SECONDS = 0.05


class Missing(Exception):
    """The time is over, and these ranks have not come."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class Twin(Exception):
    """Another process says that it is this rank: its card."""

    def __init__(self, card: dict[str, Any]) -> None:
        super().__init__(card)
        self.card = card


def agree(
    store: Store, prefix: str, rank: int, size: int, card: dict[str, Any], until: float
) -> tuple[str, list[dict[str, Any]]]:
    """The word, and the cards of all ranks. `card` says what others must know of this process, its "host" among that.
    `until` is a time of `time.monotonic`. Raises `Missing` and `Twin`.
    """
    return _Agreement(store, prefix, rank, size, card).reach(until)


class _Agreement:
    def __init__(self, store: Store, prefix: str, rank: int, size: int, card: dict[str, Any]) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._prefix = f"{prefix}/{size}"  # a later life may have more ranks, or fewer
        self._card = card | {"token": secrets.token_hex(8), "process": _process(os.getpid())}
        self._next = [0] * (size + 1)  # of the words that each rank leaves one after the other; at the end, of offers
        self._last: list[Any] = [None] * (size + 1)
        self._offered: Any = None
        self._accepted = ""

    def reach(self, until: float) -> tuple[str, list[dict[str, Any]]]:
        self._leave_card()
        pause = _LOOK_SECONDS
        while True:
            cards = self._look()
            if cards is not None:
                return self._accepted, cards
            if time.monotonic() >= until:
                raise Missing(self._missing())
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_LOOK_SECONDS)

    def _leave_card(self) -> None:
        while self._leave(self._rank, self._card) != self._card:
            earlier = self._last[self._rank]
            if earlier["host"] == self._card["host"] and earlier["process"] != self._card["process"]:
                if _process(earlier["process"][0]) == earlier["process"]:
                    raise Twin(earlier)

    def _look(self) -> list[dict[str, Any]] | None:
        """The cards, if all have agreed."""
        self._read([self._rank, self._size] if self._rank else [*range(self._size), self._size])
        mine = self._last[self._rank]
        if mine != self._card:
            raise Twin(mine)
        if self._rank == 0:
            self._offer()
        offer = self._last[self._size]
        if offer is None or offer["tokens"][self._rank : self._rank + 1] != [self._card["token"]]:
            return None
        word = offer["word"]
        if word != self._accepted:
            self._accepted = word
            self._put(f"{word}/yes/{self._rank}", True)
        if self._rank == 0 and len(self._get([f"{word}/yes/{rank}" for rank in range(self._size)])) == self._size:
            self._put(f"{word}/go", self._last[: self._size])
        found = self._get([f"{word}/go"])
        cards: list[dict[str, Any]] | None = found.get(f"{word}/go")
        return cards

    def _offer(self) -> None:
        """Rank 0 offers a word to the processes whose cards are there now."""
        cards = self._last[: self._size]
        if all(cards):
            tokens = [card["token"] for card in cards]
            if self._offered != tokens:
                self._offered = tokens
                while self._leave(self._size, offer := {"word": secrets.token_hex(8), "tokens": tokens}) != offer:
                    pass

    def _missing(self) -> list[int]:
        """Return the ranks of which there is no card; if all have one, the ranks that have not accepted."""
        self._read(range(self._size))
        absent = [rank for rank in range(self._size) if self._last[rank] is None]
        keys = {rank: f"{self._accepted}/yes/{rank}" for rank in range(self._size)}
        there = self._get(list(keys.values())) if self._accepted and not absent else {}
        return absent or [rank for rank, key in keys.items() if key not in there and rank != self._rank]

    # --- words --------------------------------------------------------------------------------------------------------

    def _leave(self, series: int, word: Any) -> Any:
        """Leave the next word of a series; returns what is there then."""
        self._last[series] = told = self._put(f"{series}/{self._next[series]}", word)
        self._next[series] += 1
        return told

    def _read(self, series: Sequence[int]) -> None:
        """The last words that are there now."""
        while series:
            keys = {f"{one}/{self._next[one]}": one for one in series}
            found = self._get(list(keys))
            series = [keys[key] for key in found]
            for key, word in found.items():
                self._last[keys[key]] = word
                self._next[keys[key]] += 1

    def _put(self, key: str, word: Any) -> Any:
        return json.loads(self._store.put(f"{self._prefix}/{key}", json.dumps(word).encode()))

    def _get(self, keys: Sequence[str]) -> dict[str, Any]:
        known = {f"{self._prefix}/{key}": key for key in keys}
        found = self._store.wait(list(known), _ASK_SECONDS)
        return {known[key]: json.loads(word) for key, word in found.items()}


def _process(pid: int) -> list[Any] | None:
    """A process of this host, and when it began; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else [pid, fields[19]]
