"""Several lives of a job in one store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from casync.rendezvous.incarnations import Missing, Twin, _process, agree
from casync.rendezvous.stores import FileStore

Outcome = tuple[str, list[dict[str, Any]]] | BaseException


def life(folder: Path, size: int, ranks: list[int] | None = None, seconds: float = 10.0) -> list[Outcome]:
    """What each of `ranks` hears, all of one process."""
    outcomes: dict[int, Outcome] = {}

    def one(place: int, rank: int) -> None:
        card = {"host": "here", "address": f"address {place}", "pid": os.getpid()}
        try:
            outcomes[place] = agree(FileStore(folder), "job", rank, size, card, time.monotonic() + seconds)
        except (Missing, Twin) as error:
            outcomes[place] = error

    numbers = list(range(size)) if ranks is None else ranks
    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(numbers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[place] for place in range(len(numbers))]


def words(outcomes: list[Outcome]) -> set[str]:
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes), outcomes
    return {outcome[0] for outcome in outcomes if isinstance(outcome, tuple)}


def test_each_life_has_a_word_of_its_own(tmp_path: Path) -> None:
    found = [words(life(tmp_path, size)) for size in (3, 3, 2, 3)]
    assert all(len(one) == 1 for one in found)
    assert len(set.union(*found)) == 4


def test_a_life_of_which_some_did_not_come_leaves_nothing_that_counts(tmp_path: Path) -> None:
    for ranks in ([0, 1], [1, 2], [0]):
        outcomes = life(tmp_path, 3, ranks, seconds=0.4)
        assert all(isinstance(outcome, Missing) for outcome in outcomes)
    assert len(words(life(tmp_path, 3))) == 1


def test_who_did_not_come_is_named(tmp_path: Path) -> None:
    for outcome in life(tmp_path, 4, [0, 2], seconds=0.5):
        assert isinstance(outcome, Missing) and outcome.ranks == [1, 3]


def test_a_process_that_lives_and_has_the_same_rank_is_told(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        store = FileStore(tmp_path)
        card = {"host": "here", "address": "there", "pid": other.pid, "token": "x", "process": _process(other.pid)}
        import json

        store.put("job/2/1/0", json.dumps(card).encode())
        with pytest.raises(Twin):
            agree(store, "job", 1, 2, {"host": "here"}, time.monotonic() + 1)
        other.kill()
    assert len(words(life(tmp_path, 2))) == 1, "it is dead"
