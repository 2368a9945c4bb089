"""The watch over an optimizer's parameters: every rank must hold the same.

A rank that has joined has no parameters to compare, and the others go on. So all that is sent here are allreduces, in
which such a rank takes part with zeros. And ranks whose epochs have different lengths count different numbers of
steps, so the count is one of the session's numbers, which `join` makes the same on all ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Generic

from casync.collectives.settings import Settings
from casync.session.default import session_of
from casync.session.gather_bytes import gather_present, present
from casync.tensors.adaptor import T, Tensors

__all__ = ["Replicas", "difference"]

_LOG = logging.getLogger("casync")
_REMEDY = (
    "Ranks must start alike, with broadcast_parameters(model.state_dict(), root_rank=0) and "
    "broadcast_optimizer_state(optimizer, root_rank=0), and nothing but the optimizer's step may change parameters. "
    "After a join() they must be given what the rank has that it returned: it alone has made every step"
)


class Replicas(Generic[T]):
    """Compares one optimizer's parameters over the ranks in its first step and every `Config.check_replicas` after."""

    def __init__(self, tensors: Tensors[T], settings: Settings, first: str) -> None:
        """`first`: the name of the optimizer's first parameter, alike on all ranks, by which they tell it from other
        optimizers.
        """
        self._tensors = tensors
        self._process_set = settings.process_set
        self._name = f"replicas.{first}"
        if settings.is_distributed:
            session_of(self._process_set).call_numbers.start(self._name)

    def step(self, parameters: Mapping[str, T]) -> None:
        """To be called before each step, on all ranks that have not joined, with the parameters by name. The lowest
        of these ranks logs what differs.
        """
        owner = session_of(self._process_set)
        step = owner.call_numbers.next(self._name)
        if not owner.config.check_replicas or step % owner.config.check_replicas:
            return
        mine = dict(zip(parameters, self._tensors.checksums(list(parameters.values())), strict=True))
        text = json.dumps(mine).encode()
        digest = int.from_bytes(hashlib.blake2s(text, digest_size=8).digest(), "little", signed=True)
        if len(set(present(owner, self._name, digest or 1).values())) == 1:
            return
        everyones = gather_present(owner, self._name, text)
        what = difference({rank: json.loads(bytes(each)) for rank, each in everyones.items()})
        if what is not None and owner.rank == min(everyones):
            _LOG.error("the replicas differ before step %d: %s", step + 1, what)


def difference(checksums: Mapping[int, Mapping[str, int]]) -> str | None:
    """Return what to say about ranks whose parameters differ; None if none do.

    Args:
        checksums: for each rank, one for each of its parameters, by name. The lowest rank's count as right.
    """
    right, *others = sorted(checksums)
    names = list(dict.fromkeys(name for rank in (right, *others) for name in checksums[rank]))
    differing = {
        name: [rank for rank in others if checksums[rank].get(name) != checksums[right].get(name)] for name in names
    }
    differing = {name: ranks for name, ranks in differing.items() if ranks}
    if not differing:
        return None
    first, ranks = next(iter(differing.items()))
    what = f"parameter {first} of {_listed(ranks)} is not what it is on rank {right}"
    having = [rank for rank in (right, *others) if first in checksums[rank]]
    if len(having) < len(checksums):
        lacking = [rank for rank in (right, *others) if rank not in having]
        what = (
            f"{_listed(having)} {_have(having)} a parameter {first}, and {_listed(lacking)} {_have(lacking)} none of "
            "that name"
        )
    more = f", and {len(differing) - 1} more of {len(names)} parameters differ" if len(differing) > 1 else ""
    return f"{what}{more}. {_REMEDY}"


def _listed(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
