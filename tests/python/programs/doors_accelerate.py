"""Accelerate's door (docs/libraries.md), and beside it Accelerate's own way over gloo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.python.programs import data
from tests.python.programs.door import Ddp


class PlainAccelerate(Ddp):
    """A script of Accelerate's, with its own way over gloo."""

    name = "gloo"

    def open(self) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state()
        GradientState._reset_state()
        self.accelerator = Accelerator(cpu=True)

    def close(self) -> None:
        self.accelerator.free_memory()

    def anew(self) -> None:
        """With another Accelerator; the process group stays."""
        self.close()
        self.open()

    def handler(self, **of_ddp: Any) -> Any:
        from accelerate.utils import DistributedDataParallelKwargs

        return DistributedDataParallelKwargs(**of_ddp)

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        self.accelerator.ddp_handler = self.handler(**of_ddp)
        return self.accelerator.prepare(model)

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module, *, scaler: Any = None, **more: Any) -> Any:
        return self.accelerator.prepare(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        self.accelerator.backward(loss)

    def batches(self, steps: int, **more: Any) -> Iterator[data.Batch]:
        """Accelerate gives each rank its batches of one DataLoader."""
        every = list(data.whole(steps, self.size, **more))
        rows = torch.utils.data.TensorDataset(*(torch.cat(columns) for columns in zip(*every, strict=True)))
        loader = self.accelerator.prepare(torch.utils.data.DataLoader(rows, batch_size=data.ROWS))
        for batch in loader:
            self.taken += 1
            yield batch

    def pass_of(self, model: Any, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self.accelerator.no_sync(model)

    @contextlib.contextmanager
    def uneven(self, model: Any) -> Iterator[None]:
        with self.accelerator.join_uneven_inputs([model]):
            yield

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.accelerator.reduce(value.detach().clone(), "mean")
        return mean

    def barrier(self) -> None:
        self.accelerator.wait_for_everyone()

    def bare(self, model: Any) -> Any:
        return self.accelerator.unwrap_model(model)


class Accelerate(PlainAccelerate):
    """docs/libraries.md"""

    name = "accelerate"

    def close(self) -> None:
        import casync.torch as hvd

        super().close()
        hvd.shutdown()

    def handler(self, **of_ddp: Any) -> Any:
        import casync.accelerate

        return casync.accelerate.ddp_kwargs(compression=self.codec, **of_ddp)
