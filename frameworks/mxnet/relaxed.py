"""Local SGD and DiLoCo of parameters of Gluon: the program calls `step()` after each step of its Trainer.

with hvd.DiLoCo(net.collect_params(), sync_every=100, compression="onebit") as diloco:
    for batch in data:
        ...
        trainer.step(batch_size)
        diloco.step()
"""

from __future__ import annotations

from typing import Any

import numpy as np
from casync.numpy.tensors import TENSORS

from casync.errors import InvalidArgumentError, NotAvailableError
from casync.relaxed import local_steps
from casync.relaxed.fragment import Fragment

from .loading import mx
from .trainer import DistributedTrainer

__all__ = ["DiLoCo", "LocalSGD"]


class _Held:
    """A parameter. What is read is a copy in the host's memory."""

    def __init__(self, name: str, parameter: Any) -> None:
        self.name, self._parameter = name, parameter

    def read(self) -> Any:
        _check_trainer(self._parameter)
        return self._parameter.data().asnumpy()

    def write(self, values: Any) -> None:
        self._parameter.set_data(mx.nd.array(values, dtype=self._parameter.dtype))


def _check_trainer(parameter: Any) -> None:
    """Raise if the parameter's trainer does what undoes a round, or makes it needless."""
    trainer = getattr(parameter, "_trainer", None)
    if isinstance(trainer, DistributedTrainer):
        raise InvalidArgumentError(
            "the DistributedTrainer averages gradients in every step: use mx.gluon.Trainer beside local steps"
        )
    optimizer = getattr(trainer, "_optimizer", None)
    if getattr(optimizer, "multi_precision", False) and parameter.dtype in ("float16", np.float16):
        raise NotAvailableError(
            "with multi_precision the optimizer goes on from weights in float32 that it keeps to itself, and what a "
            "round writes is lost: train in float32, or say multi_precision=False"
        )


def _fragment_of(parameters: Any, *, buffers: bool) -> Fragment[Any]:
    """What has a gradient is averaged under the codec, and running means as they are. What is frozen begins alike."""
    if not isinstance(parameters, dict | mx.gluon.ParameterDict):
        raise InvalidArgumentError(f"a {type(parameters).__name__} is not what net.collect_params() returns")
    trained: list[_Held] = []
    moving: list[_Held] = []
    frozen: list[_Held] = []
    for name, parameter in parameters.items():
        if not isinstance(parameter, mx.gluon.Parameter):
            raise InvalidArgumentError(f"{name} is not a parameter of Gluon")
        try:
            parameter.data()
        except (mx.gluon.DeferredInitializationError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"parameter {name} has no values yet: call net.initialize(), and net(batch) once, before"
            ) from error
        if np.issubdtype(np.dtype(parameter.dtype), np.floating):
            _check_trainer(parameter)
            is_moving = not parameter._differentiable
            kind = trained if parameter.grad_req != "null" else moving if is_moving else frozen
            kind.append(_Held(name, parameter))
    return Fragment(trained, moving if buffers else [], frozen)


class LocalSGD(local_steps.LocalSGD[Any]):
    """Local SGD of parameters. `parameters` is what `net.collect_params()` returns."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)


class DiLoCo(local_steps.DiLoCo[Any]):
    """DiLoCo of parameters. `fragments` is what `net.collect_params()` returns; or a list of such, one for a block."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)
