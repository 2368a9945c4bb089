"""DistributedOptimizer: an optimizer of Keras that applies gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
from casync.codecs import specs as codecs
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.parameter_groups import by_name
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average

from . import loss_scale
from .backends import Reducer, check_backend, reducer_of
from .momentum import Momentum
from .names import names_of

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]


class _State:
    """The state of a distributed optimizer beside Keras's own. Keras does not look here for variables to save."""

    def __init__(
        self, settings: Settings, prefix: str | None, momentum: Momentum | None, averages: bool, scales_local: bool
    ) -> None:
        self.settings = settings
        self.prefix = prefix
        self.momentum = momentum
        self.averages = averages
        self.scales_local = scales_local
        self.local: list[Any] = []
        self.reducer: Reducer | None = None
        self.names: dict[int, str] = {}
        """The names of the variables, by their id. Under these names their gradients meet."""
        self.passes_made: Any = None
        self.sums: dict[int, Any] = {}
        """The sums of gradients that wait for further passes, by the id of their variable."""

    def prepare(self, variables: Sequence[Any]) -> None:
        """Make what is kept of these, which are all that the optimizer has."""
        if not self.settings.is_distributed:
            return
        self.names = dict(zip(map(id, variables), names_of(variables, self.prefix), strict=True))
        shapes = {self.names[id(variable)]: tuple(variable.shape) for variable in variables}
        codecs.check_rules(self.settings.rules, shapes, may_warn=default.session().rank == 0)
        by_path = {variable.path: self.names[id(variable)] for variable in variables}
        groups = by_name(self.settings.groups, lambda path: by_path.get(path, path))
        self.settings = replace(self.settings, groups=groups)
        if self.settings.passes > 1:
            self.passes_made = keras.Variable(0, dtype="int32", trainable=False, name="casync_passes")
            self.sums = {
                id(one): keras.Variable(keras.ops.zeros(one.shape, one.dtype), trainable=False, name="casync_sum")
                for one in variables
            }


class _Distributed:
    """The class that is put in front of an optimizer's own. In a world of one it does nothing."""

    _casync: tuple[_State]  # in a tuple, of which Keras tracks nothing
    _original: type[Any]
    _again: Callable[[Any], Any]

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one with this configuration, wrapped as this one is, but for groups and local variables."""
        return cls._again(cls._original.from_config(*args, **kwargs))

    def __copy__(self) -> Any:
        """Copy as Keras does, by saving, which leaves us out; then wrap the copy as `from_config` does."""
        reduced: Any = self.__reduce__()
        load, saved = reduced
        return self._again(load(*saved))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def register_local_var(self, var: Any) -> None:
        """Have the gradient of this variable stay this rank's own, divided by the number of ranks."""
        self._casync[0].local.append(var)

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)  # type: ignore[misc]
        self._casync[0].prepare(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Keras's, with the gradients of all ranks."""
        (state,) = self._casync
        gradients = list(grads)
        if not state.settings.is_distributed or not gradients:
            super().apply(gradients, trainable_variables)  # type: ignore[misc]
            return
        if trainable_variables is None:
            trainable_variables = self._trainable_variables  # type: ignore[attr-defined]
        variables = list(trainable_variables)
        if not self.built:  # type: ignore[has-type]
            with keras.name_scope(self.name, caller=self):  # type: ignore[attr-defined]
                self.build(variables)
            self.built = True
        self._check_variables_are_known(variables)  # type: ignore[attr-defined]
        if state.settings.passes == 1:
            super().apply(self._reduced(gradients, variables), variables)  # type: ignore[misc]
        else:
            self._apply_every_so_often(gradients, variables)

    def _apply_every_so_often(self, gradients: list[Any], variables: list[Any]) -> None:
        (state,) = self._casync
        ops, passes = keras.ops, state.settings.passes
        sums = [
            None if gradient is None else state.sums[id(variable)] + ops.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        state.passes_made.assign((state.passes_made + 1) % passes)

        def keep(values: list[Any]) -> None:
            for variable, value in zip(variables, values, strict=True):
                if value is not None:
                    state.sums[id(variable)].assign(value)

        def step() -> None:
            divisor = passes if state.averages else 1
            means = [None if value is None else value / divisor for value in sums]
            super(_Distributed, self).apply(self._reduced(means, variables), variables)  # type: ignore[misc]
            keep([None if value is None else ops.zeros_like(value) for value in sums])

        ops.cond(ops.equal(state.passes_made, 0), step, lambda: keep(sums))

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        (state,) = self._casync
        if state.reducer is None:
            state.reducer = reducer_of(state.settings)
        local = {id(variable) for variable in state.local}
        shared = [i for i, variable in enumerate(variables) if id(variable) not in local]
        names = [state.names[id(variables[i])] for i in shared]
        terms = None if state.momentum is None else state.momentum.terms(self, names, [variables[i] for i in shared])
        reduced = state.reducer.reduce(names, [gradients[i] for i in shared], terms)
        share = default.session_of(state.settings.process_set).size if state.scales_local else 1
        result = [None if gradient is None else gradient / share for gradient in gradients] if local else gradients
        for i, gradient in zip(shared, reduced, strict=True):
            result[i] = gradient
        return result


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    topology: str | None = None,
    momentum: float | None = None,
) -> Any:
    """The optimizer, which from now on applies gradients reduced over all ranks. Its class, configuration and slots
    stay what they are, also when a model is saved and loaded: then `load_model` wraps it again.

    Args:
        optimizer: any optimizer of Keras 3 that was not built yet, or was. Of a `LossScaleOptimizer` the inner one is
            wrapped; `compile` puts one around this by itself for mixed precision.
        name: put before the names of gradients, to tell models apart whose layers have the same names.
        device_dense, device_sparse: accepted and not needed.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by the path of the variable without the name
            of the model, as in `casync.torch.DistributedOptimizer`: `{"*/bias": "none", "hidden/*": "onebit"}`.
            `Compression.none` takes `Config.compression`.
        sparse_as_dense: with TensorFlow, `tf.IndexedSlices` travel as dense tensors.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after: with
            Average.
        op: Average, Sum, Min, Max, Product or Adasum.
        backward_passes_per_step: how many batches add up locally before gradients are reduced and applied. What has
            added up is not saved with a model.
        average_aggregated_gradients: whether what has added up is divided by that number.
        num_groups, groups: which gradients are submitted together, with TensorFlow.
        process_set: the ranks whose gradients are reduced together.
        scale_local_gradients: gradients of local variables are divided by the number of ranks.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        momentum: for codecs that take over the optimizer's momentum (dgc). None takes that of `keras.optimizers.SGD`;
            any other optimizer needs a number, 0 if it has none to take over.

    `init()` comes first. A rank whose gradient is None where another has one makes that one wait, and then fail.
    """
    check_backend()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = DistributedOptimizer(
            optimizer.inner_optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients, num_groups, groups,
            process_set, scale_local_gradients, topology=topology, momentum=momentum,
        )  # fmt: skip
        return optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"a {type(optimizer).__name__} is no keras.optimizers.Optimizer: those of tf.keras.optimizers.legacy and "
            "Keras 2 are not taken"
        )
    settings = Settings.of(
        compression=compression, topology=topology, process_set=process_set, op=op,
        predivide=gradient_predivide_factor, passes=backward_passes_per_step, num_groups=num_groups,
        groups=by_name(groups, _path_of), is_parameter=str, sparse_as_dense=sparse_as_dense,
    )  # fmt: skip
    taken = Momentum(optimizer, settings, momentum) if settings.is_distributed and settings.takes_momentum else None
    again = partial(
        DistributedOptimizer, name=name, compression=compression, sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor, op=op, backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients, process_set=process_set,
        scale_local_gradients=scale_local_gradients, topology=topology, momentum=momentum,
    )  # fmt: skip
    original = getattr(optimizer, "_original", type(optimizer))
    bases = (_Distributed, *(() if taken is None else taken.bases), original)
    own = {"__module__": original.__module__, "_original": original, "_again": staticmethod(again)}
    optimizer.__class__ = type(original.__name__, bases, own)
    state = _State(settings, name, taken, average_aggregated_gradients, scale_local_gradients)
    # Past Keras's own attributes, which it looks through for variables.
    object.__setattr__(optimizer, "_casync", (state,))
    if optimizer.built:
        state.prepare(optimizer._trainable_variables)
    loss_scale.watch()
    return optimizer


def _path_of(variable: Any) -> str:
    path: str = variable.path
    return path


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """`DistributedOptimizer`, with its arguments, which leaves the gradients of `local_layers`, a layer of Keras or
    several, to their ranks.
    """
    distributed = DistributedOptimizer(optimizer, *args, **kwargs)
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, list | tuple) else [local_layers]
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise InvalidArgumentError(f"local_layers holds a {type(layer).__name__}, which is no layer of Keras")
        for variable in layer.trainable_weights:
            getattr(distributed, "inner_optimizer", distributed).register_local_var(variable)
    return distributed
