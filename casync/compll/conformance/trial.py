"""A check at work: which case it is at, how it fails, what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from casync.compll.conformance.contract import Codec
from casync.compll.conformance.elements import bits
from casync.compll.conformance.subject import Subject
from casync.errors import CasyncError

__all__ = ["Broken", "Check", "NotApplicable", "Result", "Trial", "perform", "skip"]

Case = TypeVar("Case")


class Broken(Exception):
    """A promise does not hold; the text says what was expected and what was seen."""


class NotApplicable(Exception):
    """The codec promises nothing of the kind; the text says why, or what was seen."""


@dataclass(frozen=True)
class Result:
    """`passed` is None where there was nothing to check. `seen`: the figures, or what went wrong in `case`."""

    check: str
    passed: bool | None
    seen: str
    case: str = ""


class Trial:
    """The things that a check works with: a codec, and a memory of the case it is at."""

    def __init__(self, subject: Subject, note: Callable[[str], None] = lambda case: None) -> None:
        self.subject = subject
        self.codec: Codec = subject.make()
        self.case = ""
        self.count = 0
        self._note = note

    def each(self, cases: Iterable[Case]) -> Iterator[Case]:
        """Yield the cases one by one; what goes wrong is reported with the one at hand."""
        for case in cases:
            self.at(case)
            self.count += 1
            yield case

    def at(self, case: object) -> None:
        """Says more of the case at hand."""
        self.case = str(case)
        self._note(self.case)

    def equal(self, what: str, got: np.ndarray, want: np.ndarray) -> None:
        """Equal bits, or Broken with the first place where they are not."""
        if len(got) != len(want):
            raise Broken(f"{what}: {len(got)} long, expected {len(want)}")
        wrong = np.flatnonzero(bits(got) != bits(want))
        if len(wrong):
            i = wrong[0]
            raise Broken(f"{what}: element {i} is {got[i]:.9g}, expected {want[i]:.9g} ({len(wrong)} differ)")


@dataclass(frozen=True)
class Check:
    """`run` returns what it saw, in a line, or raises Broken or NotApplicable."""

    name: str
    run: Callable[[Trial], str]


def perform(check: Check, subject: Subject, note: Callable[[str], None] = lambda case: None) -> Result:
    """Runs a check; whatever the codec raises is a failure of it."""
    trial = Trial(subject, note)
    try:
        seen = check.run(trial)
        return Result(check.name, True, seen) if trial.count else Result(check.name, None, "there was nothing to try")
    except NotApplicable as reason:
        return Result(check.name, None, str(reason))
    except Broken as broken:
        return Result(check.name, False, str(broken), trial.case)
    except CasyncError as error:
        return Result(check.name, False, f"{type(error).__name__}: {error}", trial.case)


def skip(reason: str) -> NoReturn:
    raise NotApplicable(reason)
