"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras

import tensorflow as tf
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.tensors.signature import Sum

from .ops import allreduce

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance in training are those of all ranks' inputs together.

    Batches may differ in size between ranks. A training step is collective in forward and in backward: two exchanges of
    as many values as there are channels. In inference, and in a world of one, it is Keras's own. Arguments are Keras's;
    `fused` is accepted and must be false.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise InvalidArgumentError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> Any:
        mean, variance = super()._moments(inputs, mask)
        if default.session().size == 1:
            return mean, variance
        elements = tf.size(inputs) // inputs.shape[self.axis]
        if mask is not None:
            elements = tf.reduce_sum(tf.cast(tf.broadcast_to(mask[..., tf.newaxis], tf.shape(inputs)), tf.int32))
            elements //= inputs.shape[self.axis]
        count = tf.cast(elements, mean.dtype)
        # Mean and variance of several batches from those of each (Chan, Golub, LeVeque 1979).
        totals = allreduce(tf.concat([count[tf.newaxis], count * mean], 0), op=Sum)
        overall = totals[1:] / totals[0]
        spread = allreduce(count * (variance + tf.square(mean - overall)), op=Sum) / totals[0]
        return overall, spread
