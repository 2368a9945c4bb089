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

from casync.errors import InvalidArgumentError
from casync.relaxed import local_steps
from casync.relaxed.rounds import Fragment

from .loading import mx

__all__ = ["DiLoCo", "LocalSGD"]


class _Held:
    """A parameter. What is read is a copy in the host's memory."""

    def __init__(self, name: str, parameter: Any) -> None:
        self.name, self._parameter = name, parameter

    def read(self) -> Any:
        return self._parameter.data().asnumpy()

    def write(self, values: Any) -> None:
        self._parameter.set_data(mx.nd.array(values, dtype=self._parameter.dtype))


def _fragment_of(parameters: Any, *, buffers: bool) -> Fragment[Any]:
    """What has a gradient is averaged under the codec, and what has none (running means) as it is."""
    if not isinstance(parameters, dict | mx.gluon.ParameterDict):
        raise InvalidArgumentError(f"a {type(parameters).__name__} is not what net.collect_params() returns")
    trained: list[_Held] = []
    moving: list[_Held] = []
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
            (moving if parameter.grad_req == "null" else trained).append(_Held(name, parameter))
    return Fragment(trained, moving if buffers else [])


class LocalSGD(local_steps.LocalSGD[Any]):
    """Local SGD of parameters. `parameters` is what `net.collect_params()` returns."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)


class DiLoCo(local_steps.DiLoCo[Any]):
    """DiLoCo of parameters. `fragments` is what `net.collect_params()` returns; or a list of such, one for a block."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)
