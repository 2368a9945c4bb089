"""The error that names what one rank trains and another does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from casync.errors import MismatchError
from casync.observe.metrics import OWN
from casync.session.gather_bytes import gather_bytes
from casync.session.session import Session

__all__ = ["refuse_names"]


def refuse_names(owner: Session, name: str, names: Sequence[str]) -> NoReturn:
    """Raise `MismatchError` with a parameter that one rank has and another has not. Collective over ranks of which not
    all have the same `names`.
    """
    mine, here = set(names), owner.peers[owner.rank]
    for rank, text in enumerate(gather_bytes(owner, f"{OWN}{name}.names", "\n".join(names).encode())):
        theirs = bytes(text).decode().split("\n")
        if theirs == list(names):
            continue
        there = owner.peers[rank]
        found = [f"rank {there} trains {other}, which rank {here} does not" for other in theirs if other not in mine][
            :1
        ]
        found += [f"rank {here} trains {own}, which rank {there} does not" for own in names if own not in theirs][:1]
        raise MismatchError(
            f"{name}: {', and '.join(found) or f'rank {there} has the parameters in another order'}. All ranks of the "
            "process set must train the same parameters, and the same shards where they are sharded"
        )
    raise AssertionError("all ranks have the same names")
