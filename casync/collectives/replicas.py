"""The watch over an optimizer's parameters: every rank must hold the same.

A rank that has joined has no parameters to compare, and the others go on. So all that is sent here are allreduces, in
which such a rank takes part with zeros. And ranks whose epochs have different lengths count different numbers of
steps, so the count is one of the session's numbers, which `join` makes the same on all ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Generic

from casync import replicas
from casync.collectives.settings import Settings
from casync.session.default import session_of
from casync.session.gather_bytes import gather_present, present
from casync.tensors.adaptor import T, Tensors

__all__ = ["Replicas"]

_LOG = logging.getLogger("casync")


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
            session_of(self._process_set).start_numbers(self._name)

    def step(self, parameters: Mapping[str, T]) -> None:
        """To be called before each step, on all ranks that have not joined, with the parameters by name. The lowest
        of these ranks logs what differs.
        """
        owner = session_of(self._process_set)
        step = owner.next_number(self._name)
        if not owner.config.check_replicas or step % owner.config.check_replicas:
            return
        mine = dict(zip(parameters, self._tensors.checksums(list(parameters.values())), strict=True))
        text = json.dumps(mine).encode()
        digest = int.from_bytes(hashlib.blake2s(text, digest_size=8).digest(), "little", signed=True)
        if len(set(present(owner, self._name, digest or 1).values())) == 1:
            return
        everyones = gather_present(owner, self._name, text)
        what = replicas.difference({rank: json.loads(bytes(each)) for rank, each in everyones.items()})
        if what is not None and owner.rank == min(everyones):
            _LOG.error("the replicas differ before step %d: %s", step + 1, what)
