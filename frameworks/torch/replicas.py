"""The watch over an optimizer's parameters: every rank must hold the same."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

import torch
from casync.default import ProcessSet, session_of
from casync.replicas import difference

from . import ops

__all__ = ["Replicas"]

_LOG = logging.getLogger("casync")


class _Named(Protocol):
    parameter: torch.nn.Parameter
    name: str  # the user's
    tensor: str  # the session's


class Replicas:
    """Compares one optimizer's parameters over the ranks in its first step and every `Config.check_replicas` after."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._steps = 0

    def step(self, entries: Collection[_Named]) -> None:
        """To be called before each step, on all ranks. Rank 0 logs what differs."""
        step, self._steps = self._steps, self._steps + 1
        owner = session_of(self._process_set)
        if not entries or not owner.config.check_replicas or step % owner.config.check_replicas:
            return
        mine = torch.tensor([[_checksum(entry.parameter) for entry in entries]], dtype=torch.int64)
        everyones = ops.allgather(mine, f"replicas.{next(iter(entries)).tensor}", self._process_set)
        what = difference([entry.name for entry in entries], everyones.tolist())
        if what is not None and owner.rank == 0:
            _LOG.error("the replicas differ before step %d: %s", step + 1, what)


def _checksum(parameter: torch.Tensor) -> int:
    from casync import _core

    values = parameter.detach().contiguous()
    return _core.crc32c(values.data_ptr(), values.numel() * values.element_size())
