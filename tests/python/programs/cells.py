"""What a program says of itself: for which situation it stands, through which doors it goes, and what must come of it.

    @right("weights that are tied", "optimizer hook backend fsdp2")
    def tied_weights(door): ...

`tools/interplay.py` reads these decorators, without running anything, and makes the table of docs/interplay.md of them.
The ranks of a job (job.py) find the programs by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Program = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    program: Program
    codec: str  # what is asked of a run with a codec that has feedback; "none": there is no such run
    beside: str  # whose numbers are right; "": those of the door's own reference


CELLS: dict[tuple[str, str], Cell] = {}


def right(
    situation: str,
    doors: str,
    *,
    codec: str = "mass",
    beside: str = "",
    ranks: int = 2,
    apart: bool = False,
    ends: tuple[int, ...] = (),
    says: str = "",
    far: float = 1e-4,
) -> Callable[[Program], Program]:
    """The program gives the numbers of its reference, through each of `doors`.

    Args:
        codec: what holds of a second run with onebit. "mass": all ranks have the same bits, and what was applied and
            what is pending add up to what was given, where the door can say so. "alike": the first of these. "exact":
            the numbers are those of the reference, since nothing of them is a gradient. "none": there is no second run.
        beside: the reference. "alone": one process on the data of all ranks. "gloo": the same ranks, with what PyTorch
            or the library itself does, over gloo. "": gloo for Lightning and Transformers, and alone for all others.
        ranks: how many there are.
        apart: the program ends processes, and its job with them. `ends` are the exit statuses of the ranks then, and
            rank 0 says what matches `says`.
        far: how far a number may be from its reference, in parts of the largest of them.
    """

    def add(program: Program) -> Program:
        for door in doors.split():
            CELLS[situation, door] = Cell(program, codec, beside)
        return program

    return add


def refused(
    situation: str, doors: str, *, error: str, says: str, why: str, batches: int = 0, ranks: int = 2
) -> Callable[[Program], Program]:
    """The program ends with an error of the class `error`, whose text matches `says`, on every rank.

    Args:
        why: the reason why it cannot be right, for the manual.
        batches: how many the program has taken at most when the error comes. 0: it comes before any data.
    """

    def add(program: Program) -> Program:
        for door in doors.split():
            CELLS[situation, door] = Cell(program, "none", "")
        return program

    return add


def wrong(situation: str, doors: str, *, fault: str, **of_right: Any) -> Callable[[Program], Program]:
    """The program should be `right`, and is not: a strict xfail, so that the mend takes this mark along.

    Args:
        fault: what is seen and why, for the manual.
    """
    return right(situation, doors, **of_right)
