"""The watch over an optimizer's parameters: every rank must hold the same."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Iterable
from typing import Generic

from casync import replicas
from casync.collectives.gradient_submits import Gradient
from casync.default import session_of
from casync.gather_bytes import gather_bytes
from casync.process_sets import ProcessSet
from casync.tensors import T, Tensors

__all__ = ["Replicas"]

_LOG = logging.getLogger("casync")


class Replicas(Generic[T]):
    """Compares one optimizer's parameters over the ranks in its first step and every `Config.check_replicas` after."""

    def __init__(self, tensors: Tensors[T], process_set: ProcessSet) -> None:
        self._tensors = tensors
        self._process_set = process_set
        self._steps = 0

    def step(self, gradients: Collection[Gradient], parameters: Iterable[T]) -> None:
        """To be called before each step, on all ranks, with what the parameters are called and what they are. Rank 0
        logs what differs.
        """
        step, self._steps = self._steps, self._steps + 1
        owner = session_of(self._process_set)
        if not gradients or not owner.config.check_replicas or step % owner.config.check_replicas:
            return
        mine = array("I", [self._checksum(parameter) for parameter in parameters])
        everyones = gather_bytes(owner, f"replicas.{next(iter(gradients)).tensor}", mine.tobytes())
        checksums = [each.cast("I").tolist() for each in everyones]
        what = replicas.difference([gradient.name for gradient in gradients], checksums)
        if what is not None and owner.rank == 0:
            _LOG.error("the replicas differ before step %d: %s", step + 1, what)

    def _checksum(self, parameter: T) -> int:
        from casync import _core

        values = self._tensors.contiguous(self._tensors.on_host(parameter))
        return _core.crc32c(self._tensors.address(values), self._tensors.nbytes(values))
