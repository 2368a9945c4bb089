"""Models that were saved with a DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike

from .optimizer import DistributedOptimizer

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: CompressionLike = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """`keras.models.load_model`, whose optimizer is wrapped again, with the state that it was saved with.

    Args:
        filepath: what `model.save` wrote.
        custom_optimizers: classes of optimizers that are not Keras's own.
        custom_objects: as Keras takes them.
        compression: as `DistributedOptimizer` takes it. What codecs keep of gradients is not in the file: see
            `casync.save_state`.
        legacy_opts: accepted and not needed.
    """
    classes = {one.__name__: one for one in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**classes, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:  # it is not there in a model that was not compiled
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
