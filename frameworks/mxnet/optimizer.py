"""DistributedOptimizer: for the Module API, whose updates come parameter by parameter."""

from __future__ import annotations

from typing import Any

from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.gradient_submits import OptimizerSettings
from casync.collectives.settings import Settings
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .gradients import Gradients, without_momentum
from .loading import mx

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer that updates with the mean of all ranks' gradients. Everything else is the wrapped one's.

    Args:
        optimizer: any `mx.optimizer.Optimizer`.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after.
        num_groups: gradients that come in one call are submitted together in so many groups. 0: each alone.
        process_set: the ranks whose gradients are reduced together. On other ranks nothing is.
        compression: a codec, or codecs by name, as in `DistributedTrainer`. Names are the Module's, else the numbers of
            the parameters.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.

    `init()` comes first. No method waits.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = Compression.none,
        topology: str | None = None,
    ) -> None:
        settings = Settings.of(
            compression=compression,
            topology=topology,
            process_set=process_set,
            predivide=gradient_predivide_factor,
            num_groups=num_groups,
        )
        self.__dict__.update(wrapped=optimizer, _gradients=Gradients(without_momentum(settings)), _number=num_groups)

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)

    def _reduce(self, index: Any, grad: Any) -> None:
        if not self._gradients.settings.is_distributed:
            return
        self._gradients.check()
        indices, grads = (index, grad) if isinstance(index, list | tuple) else ([index], [grad])
        named = [(str(self.wrapped.idx2name.get(i, i)), each) for i, each in zip(indices, grads, strict=True)]
        number = min(self._number, len(named)) or len(named)
        ends = [len(named) * (i + 1) // number for i in range(number)]
        for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            self._gradients.give(named[begin:end], -i, OptimizerSettings())

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self.wrapped.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self.wrapped.update_multi_precision(index, weight, grad, state)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.wrapped.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self.wrapped.create_state_multi_precision(index, weight)

    def set_learning_rate(self, lr: float) -> None:
        self.wrapped.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self.wrapped.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self.wrapped.set_wd_mult(args_wd_mult)
