"""DistributedOptimizer, for Keras and for graphs of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.parameter_groups import by_name
from casync.collectives.settings import Settings
from casync.errors import NotAvailableError
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average

from .gradients import GraphGradients, name_of, names_of

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    topology: str | None = None,
    momentum: float | None = None,
) -> Any:
    """An optimizer of the same class that steps with gradients reduced over all ranks.

    Of Keras's it is `casync.keras.DistributedOptimizer`, with the arguments that are described there. Of
    `tf.compat.v1.train` it is one whose `compute_gradients` returns reduced gradients; `backward_passes_per_step` and
    `momentum` are Keras's alone. `use_locking`, `device_dense` and `device_sparse` are accepted and not needed.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from casync import keras

        return keras.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set,
            scale_local_gradients, topology=topology, momentum=momentum,
        )  # fmt: skip
    if backward_passes_per_step != 1 or momentum is not None:
        raise NotAvailableError("backward_passes_per_step and momentum: use an optimizer of keras.optimizers")
    settings = Settings.of(
        compression=compression, topology=topology, process_set=process_set, op=op, predivide=gradient_predivide_factor,
        num_groups=num_groups, groups=by_name(groups, name_of), sparse_as_dense=sparse_as_dense,
    )  # fmt: skip
    original = getattr(optimizer, "_original", type(optimizer))
    own = {"__module__": original.__module__, "_original": original}
    optimizer.__class__ = type(original.__name__, (_Distributed, original), own)
    optimizer.casync_settings, optimizer.casync_gradients = settings, GraphGradients(settings, claims=True)
    return optimizer


class _Distributed:
    """The class that is put in front of an optimizer's own, for optimizers of TensorFlow 1."""

    casync_settings: Settings
    casync_gradients: GraphGradients

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the base class's pairs of gradient and variable, reduced."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        if not self.casync_settings.is_distributed:
            return list(pairs)
        gradients, variables = zip(*pairs, strict=True)
        reduced = self.casync_gradients.reduce(names_of(variables), gradients)
        return list(zip(reduced, variables, strict=True))
