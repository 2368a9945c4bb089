"""Rounds are the same on all ranks, or an error names what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from casync.errors import MismatchError
from casync.observe.metrics import OWN
from casync.session.gather_bytes import gather_bytes
from casync.session.session import Session

__all__ = ["check_alike"]


def check_alike(owner: Session, name: str, settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `MismatchError` if the settings of the rounds `name`, or the `names` of their parameters, are not those of
    all ranks. Collective.
    """
    if owner.size == 1:
        return
    ours = {**settings, "names": hashlib.blake2s("\n".join(names).encode(), digest_size=8).hexdigest()}
    told = json.dumps(ours).encode()
    everyones = [json.loads(bytes(text)) for text in gather_bytes(owner, f"{OWN}{name}.settings", told)]
    if any(theirs["names"] != ours["names"] for theirs in everyones):
        _refuse_names(owner, name, names)
    for rank, theirs in enumerate(everyones):
        if differing := [key for key in ours if theirs[key] != ours[key]]:
            there = ", ".join(f"{key} is {theirs[key]} on rank {owner.peers[rank]}" for key in differing)
            here = ", ".join(f"{key} {ours[key]}" for key in differing)
            raise MismatchError(
                f"{name} is not alike on all ranks: {there}, and this rank, {owner.peers[owner.rank]}, has {here}"
            )


def _refuse_names(owner: Session, name: str, names: Sequence[str]) -> NoReturn:
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
