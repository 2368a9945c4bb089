"""Callbacks for `model.fit`, under Horovod's names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import keras
from casync import numpy as hvd
from casync.errors import InvalidArgumentError
from casync.session import world_info as basics

from . import relaxed
from .values import broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCo",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGD",
    "MetricAverageCallback",
]

_LOG = logging.getLogger("casync")


def _variables_of(model: Any) -> list[Any]:
    """The model's, and its optimizer's if that was built."""
    optimizer = model.optimizer
    return [*model.variables, *(optimizer.variables if optimizer is not None and optimizer.built else ())]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """All ranks train from the weights and the optimizer's state of the rank `root_rank`: of a model that is built from
    the first batch on, of another one after it.

    Args:
        root_rank: its number in the world.
        device: accepted and not needed.
        local_variables: variables that stay each rank's own; `register_local_var` adds one.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._local = {id(variable) for variable in local_variables or ()}
        self._is_done = False

    def register_local_var(self, var: Any) -> None:
        """Leave this variable as it is."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model.built and not self._is_done:
            optimizer = self.model.optimizer
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_variables([one for one in _variables_of(self.model) if id(one) not in self._local], self._root_rank)
        self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes every metric its mean over the ranks at the end of each epoch. Put it before callbacks that read metrics,
    as ReduceLROnPlateau does. `device` is accepted and not needed.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in sorted(logs or ()):
            assert logs is not None
            value = np.asarray(logs[name], np.float64)
            logs[name] = float(hvd.allreduce(value, name=f"metric.{name}"))


class LocalSGD(keras.callbacks.Callback):  # type: ignore[misc]
    """Local SGD in `fit`: each rank trains alone, and every `sync_every` steps the weights become the mean of all.
    After `fit` all ranks have the same weights. Ranks may have different numbers of batches. The model is compiled with
    a plain optimizer, not with a DistributedOptimizer. Put it before callbacks that read weights or save them.

        model.fit(x, y, callbacks=[hvd.callbacks.LocalSGD(sync_every=8, compression="onebit")])

    Validation during `fit` and all that callbacks do at the end of an epoch sees the global weights, those of the last
    round: so EarlyStopping and ModelCheckpoint keep weights that are alike on all ranks. A MetricAverageCallback makes
    their decisions alike. What changes weights in the end, as `restore_best_weights` does, has the last word, and ranks
    that differ in it get the mean. Where `steps_per_execution` is more than 1, rounds begin after an execution.

    A second `fit` goes on where the first ended; after a change of weights or of what is trainable it begins anew.

    Args:
        sync_every: steps of the optimizer between two rounds.
        settings: what `casync.keras.LocalSGD` takes beside the model.
    """

    _makes: type[Any] = relaxed.LocalSGD
    _is_training = False

    def __init__(self, sync_every: int, **settings: Any) -> None:
        super().__init__()
        self._settings = {"sync_every": sync_every, **settings}
        self._step = 0
        self._of: Any = None  # what the local steps were made of
        self._evaluation: Any = None  # the context of the global weights, while they are in place
        self.local_steps: Any = None
        """The `casync.keras.LocalSGD` or `casync.keras.DiLoCo`, from the begin of `fit` on."""

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.built:
            raise InvalidArgumentError(
                f"{type(self).__name__} gives all ranks the same weights before the first step, and the model has none "
                "yet: call model.build(shape), or the model with a batch, before fit()"
            )
        if getattr(self.model.optimizer, "_casync", None) is not None:
            raise InvalidArgumentError(
                "the model is compiled with a DistributedOptimizer, which averages gradients in every step: compile it "
                "with the optimizer that this was made of"
            )
        if self.model.steps_per_execution > self._settings["sync_every"]:
            raise InvalidArgumentError(
                f"steps_per_execution={self.model.steps_per_execution} and sync_every={self._settings['sync_every']}: "
                "rounds begin after an execution, which so may have at most sync_every steps"
            )
        self._leave()
        of = [id(each) for each in (self.model, *self.model.trainable_weights)]
        if self.local_steps is not None and self._anywhere(of != self._of or self._rounds.differs_from_global()):
            self.local_steps = None
        if self.local_steps is None:
            self.local_steps, self._of = self._makes(self._parts(), **self._settings), of
        self._step = self._own_steps()
        self._is_training = True

    @property
    def _rounds(self) -> Any:
        return self.local_steps.rounds

    def _sum(self, values: Any, name: str) -> Any:
        settings = {key: self._settings[key] for key in ("process_set",) if key in self._settings}
        return hvd.allreduce(np.asarray(values), op=hvd.Sum, name=f"{self._rounds.name}.{name}", **settings)

    def _anywhere(self, is_so: bool) -> int:
        """On how many ranks it is so."""
        return int(self._sum(int(is_so), "keras"))

    def _parts(self) -> Any:
        return self.model

    def _own_steps(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _enter(self) -> None:
        if self._evaluation is None:
            self._evaluation = self.local_steps.global_parameters()
            self._evaluation.__enter__()

    def _leave(self) -> None:
        context, self._evaluation = self._evaluation, None
        if context is not None:
            context.__exit__(None, None, None)

    def on_test_begin(self, logs: Any = None) -> None:
        if self._is_training:
            self._enter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._enter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._evaluation is not None and self._rounds.differs_from_global():
            raise InvalidArgumentError(
                "a callback changed weights at the end of an epoch, where the global ones are in place, as "
                f"SwapEMAWeights does: with {type(self).__name__} that can be done after fit()"
            )
        self._leave()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = self._own_steps()
        for _ in range(now - self._step):
            self.local_steps.step()
        self._step = now

    def on_train_end(self, logs: Any = None) -> None:
        self._is_training = False
        is_changed = self._evaluation is not None and self._rounds.differs_from_global()
        floats = [weight for weight in self.model.weights if keras.backend.is_float_dtype(weight.dtype)]
        wanted = [np.array(keras.ops.convert_to_numpy(weight)) for weight in floats] if is_changed else []
        self._leave()
        self.local_steps.finish()
        if count := self._anywhere(is_changed):  # EarlyStopping has put back the best weights, or the optimizer its EMA
            for place, weight in enumerate(floats):
                given = wanted[place] if is_changed else np.zeros(weight.shape, np.dtype(weight.dtype))
                weight.assign(self._sum(given / count, f"keras{place}"))


class DiLoCo(LocalSGD):
    """DiLoCo in `fit`: as `LocalSGD`, with an outer optimizer (Douillard et al. 2023).

    Args:
        outer_optimizer: None takes `casync.relaxed.outer.Nesterov(lr=0.7, momentum=0.9)`.
        sync_every: steps of the optimizer between two rounds.
        fragments: None for the whole model, or a function of the model that returns a list of its layers, each of which
            is a fragment with rounds of its own.
        settings: what `casync.keras.DiLoCo` takes beside these.
    """

    _makes = relaxed.DiLoCo

    def __init__(
        self,
        outer_optimizer: Any = None,
        sync_every: int = 100,
        *,
        fragments: Callable[[Any], list[Any]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(sync_every, outer_optimizer=outer_optimizer, **settings)
        self._fragments = fragments

    def _parts(self) -> Any:
        return self.model if self._fragments is None else self._fragments(self.model)


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate is `initial_lr * multiplier(epoch)` between two epochs.

    Args:
        initial_lr: the rate before any multiplier.
        multiplier: a function of the epoch, or a number.
        start_epoch: the first epoch in which it holds.
        end_epoch: the first in which it does not any more; None: to the end.
        staircase: whether it changes at the begin of epochs alone; else with every batch, and the epoch is a fraction.
        momentum_correction: when the rate changes, the momentum of SGD is multiplied by the same for one batch. On
            TensorFlow Keras compiles the momentum into the step, unless the model runs eagerly: then nothing is
            corrected, with a warning.
        steps_per_epoch: None: what `fit` found.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0
        self._restore: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}() or upgrade to the latest version of Keras."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over:
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            self._adjust(self.current_epoch + float(batch) / float(self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._restore is not None:
            self._of_sgd().momentum, self._restore = self._restore, None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _of_sgd(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = getattr(self._of_sgd(), "momentum", None)
        if not self.momentum_correction or not momentum or not old or old == new:
            return
        if not self.model.run_eagerly and keras.backend.backend() == "tensorflow":
            _LOG.warning(
                "momentum_correction does nothing: Keras has compiled the momentum into the step. Say "
                "momentum_correction=False, or compile(run_eagerly=True)"
            )
            self.momentum_correction = False
            return
        self._restore = momentum
        self._of_sgd().momentum = momentum * new / old


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The learning rate rises over the first `warmup_epochs` from `initial_lr / size` to `initial_lr`, which is the one
    for all ranks together (Goyal et al. 2017, section 2.2).

    Other arguments are those of `LearningRateScheduleCallback`; `verbose` 1 prints the rate at the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = basics.size()
            at = epoch + 1.0 / (self.steps_per_epoch or 1)  # so that a multiple of an epoch is reached at its end
            return 1 / size * (at * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, start_epoch=0, end_epoch=warmup_epochs, staircase=False,
            momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's `ModelCheckpoint` of the best model so far. `filepath` is set before training, on the ranks that save."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=save_weights_only,
            mode=mode, save_freq=save_freq,
        )  # fmt: skip
