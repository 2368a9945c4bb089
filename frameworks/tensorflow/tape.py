"""A gradient tape whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import tensorflow as tf
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.parameter_groups import by_name
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average

from .errors import public
from .gradients import GraphGradients, averaged, name_of, names_of
from .tensors import shape_of

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _Tape:
    """The tape that it was given, but for `gradient`."""

    def __init__(self, tape: Any, settings: Settings, scale_local_gradients: bool) -> None:
        self._tape = tape
        self._settings = settings
        self._gradients = _gradients_of(settings)
        self._scales_local = scale_local_gradients
        self._local: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> _Tape:
        self._tape.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._tape.__exit__(*what)

    def register_local_source(self, source: Any) -> None:
        """Have the gradient of this variable stay this rank's own, divided by the number of ranks unless
        `scale_local_gradients` is false.
        """
        self._local[id(source)] = source

    @public
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_gradient: bool = False,
    ) -> Any:
        """`tf.GradientTape.gradient`, whose results are reduced over the ranks. `use_generic_gradient` is accepted and
        not needed.
        """
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        names = names_of(variables)
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self._local]
        self._gradients.check_rules({names[i]: shape_of(variables[i]) for i in shared})
        if not self._settings.is_distributed:
            return gradients
        reduced = self._gradients.reduce([names[i] for i in shared], [flat[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            flat[i] = gradient
        if self._scales_local:
            for i in set(range(len(flat))).difference(shared):
                flat[i] = averaged(flat[i], self._gradients.size)
        return tf.nest.pack_sequence_as(gradients, flat)


_made: dict[Hashable, GraphGradients] = {}


def _gradients_of(settings: Settings) -> GraphGradients:
    """Return one object for all tapes of the same settings: an eager program makes a tape each step, the graph once."""
    key = (
        settings.rules.pairs, settings.topology, settings.op, settings.predivide, str(settings.groups),
        settings.sparse_as_dense, id(settings.process_set), settings.process_set.process_set_id,
        settings.process_set.size(),  # by which the graph divides slices
    )  # fmt: skip
    if key not in _made:
        _made[key] = GraphGradients(settings, claims=False)
    return _made[key]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    topology: str | None = None,
) -> Any:
    """A tape whose `gradient()` returns gradients reduced over all ranks.

    In a `tf.function` each is reduced as soon as backward has made it. Eagerly all are, after backward. What a codec
    keeps of a gradient belongs to the name of its variable, so different models need different names.

    Args:
        gradtape: a `tf.GradientTape`.
        device_dense, device_sparse: accepted and not needed.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name of the variable, as in
            `casync.torch.DistributedOptimizer`. `Compression.none` takes `Config.compression`.
        sparse_as_dense: `tf.IndexedSlices` travel as dense tensors. False: ranks exchange the slices that there are,
            uncompressed or in 16 bits, with Average or Sum.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after: with
            Average.
        num_groups: deprecated, the same as `groups`.
        groups: lists of variables whose gradients are submitted together, or the number of such lists.
        process_set: the ranks whose gradients are reduced together.
        scale_local_gradients: gradients of local sources are divided by the number of ranks.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.

    `register_local_source(variable)` leaves the gradient of a variable to its rank.
    """
    settings = Settings.of(
        compression=compression, topology=topology, process_set=process_set, op=op, predivide=gradient_predivide_factor,
        num_groups=num_groups, groups=by_name(groups, name_of), sparse_as_dense=sparse_as_dense,
    )  # fmt: skip
    return _Tape(gradtape, settings, scale_local_gradients)


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape`, with its arguments, which leaves the gradients of `local_layers`, a Keras layer or
    several, to their ranks.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def local_variables(layers: Any) -> list[Any]:
    """The trainable variables of a layer, or of several."""
    if layers is None:
        return []
    given = list(layers) if isinstance(layers, Iterable) else [layers]
    for layer in given:
        if not hasattr(layer, "trainable_weights"):
            raise InvalidArgumentError(f"local_layers holds a {type(layer).__name__}, which is no layer of Keras")
    return [variable for layer in given for variable in layer.trainable_weights]
