"""A key-value store without a store, for scripts that have `gluon.Trainer(kvstore=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.gradient_submits import OptimizerSettings
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.session import default
from casync.tensors.signature import Sum

from .gradients import Gradients, without_momentum
from .loading import mx
from .ops import broadcast
from .tensors import LAZY

__all__ = ["CaSync"]


class CaSync(mx.kv.KVStoreBase):  # type: ignore[misc]
    """`mx.kv.create("casync")`, and "dist_casync" by name: with one context, gluon makes a store only of a name that
    has "dist" in it. Values are summed over the ranks, as in MXNet's own stores: give `step` the size of all batches.

    `Trainer(compression_params={"compression": "onebit"})` takes what `DistributedTrainer(compression=)` takes; names
    are the keys. `init()` comes first. No method waits.
    """

    def __init__(self) -> None:
        self._gradients = self._with(Compression.none)

    def _with(self, compression: CompressionLike) -> Gradients:
        return Gradients(without_momentum(Settings.of(compression=compression, topology=None, op=Sum)))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Rank 0's `value`, in all of `out`."""
        received = broadcast(_one(value), 0, f"kvstore.{key}", priority)
        for each in out if isinstance(out, list) else [out]:
            LAZY.assign(each, received)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """The sum of all ranks' `value`, in its own place or in all of `out`."""
        value = _one(value)
        if out is not None:
            value = LAZY.copy(LAZY.admit(value))
        if self._gradients.settings.is_distributed:
            self._gradients.check()
            self._gradients.give([(f"kvstore.{key}", value)], priority, OptimizerSettings())
        for each in out if isinstance(out, list) else [] if out is None else [out]:
            LAZY.assign(each, value)

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """`{"compression": ...}`, before the first `pushpull`."""
        if set(compression_params) != {"compression"}:
            raise InvalidArgumentError(f"compression_params={compression_params!r}: give {{'compression': a codec}}")
        self._gradients = self._with(compression_params["compression"])

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Optimizers run on the ranks."""
        if capability.lower() != mx.kv.KVStoreBase.OPTIMIZER:
            raise InvalidArgumentError(f"MXNet asks stores for {mx.kv.KVStoreBase.OPTIMIZER}, not for {capability}")
        return False

    @property
    def type(self) -> str:
        return "dist_casync"

    @property
    def rank(self) -> int:
        return default.session().rank

    @property
    def num_workers(self) -> int:
        return default.session().size

    def set_optimizer(self, optimizer: Any) -> None:
        """Raises: optimizers run on the ranks."""
        raise NotAvailableError("optimizers run on the ranks: Trainer(update_on_kvstore=False)")


def _one(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise NotAvailableError(f"a value on {len(value)} contexts: give each rank one")
    return value[0]


mx.kv.KVStoreBase.register(CaSync)
mx.kv.KVStoreBase.kv_registry["dist_casync"] = CaSync
