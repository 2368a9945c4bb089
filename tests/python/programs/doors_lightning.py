"""Lightning's door (docs/libraries.md), and beside it Lightning's own DDPStrategy over gloo."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.python.programs import data

torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):
    """A LightningModule as users write it, around a model."""

    def __init__(self, model: torch.nn.Module, make_optimizer: Any = None) -> None:
        super().__init__()
        self.model = model
        self.make_optimizer = make_optimizer or (lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))

    def forward(self, *given: Any) -> Any:
        return self.model(*given)

    def training_step(self, batch: data.Batch, number: int) -> torch.Tensor:
        x, y = batch
        return F.mse_loss(self(x), y)

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.model)


class Lightning:
    name = "lightning"

    def __init__(self, job: Any, codec: str) -> None:
        self.job, self.codec = job, codec
        self.rank, self.size = job.rank, job.size
        self.taken = 0

    def __enter__(self) -> Lightning:
        return self

    def __exit__(self, *_: object) -> None:
        import casync.torch as hvd

        hvd.shutdown()

    def strategy(self, **of_ddp: Any) -> Any:
        import casync.lightning

        return casync.lightning.CasyncStrategy(self.codec, **of_ddp)

    def trainer(self, *, of_ddp: dict[str, Any] | None = None, **more: Any) -> pl.Trainer:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet |= {"enable_checkpointing": False, "max_epochs": 1, "num_sanity_val_steps": 0}
        strategy = self.strategy(**(of_ddp or {}))
        return pl.Trainer(accelerator="cpu", devices=self.size, strategy=strategy, **(quiet | more))

    def data(self, steps: int = 6, rows: int = data.ROWS, **more: Any) -> Any:
        """Lightning gives each rank its own part of it."""
        every = list(data.whole(steps, self.size))
        return DataLoader(TensorDataset(*(torch.cat(c) for c in zip(*every, strict=True))), batch_size=rows, **more)

    def fit(self, module: pl.LightningModule, *, steps: int = 6, **more: Any) -> dict[str, Any]:
        """Train; what the result of most programs is."""
        self.trainer(**more).fit(module, self.data(steps))
        return self.weights(module)

    def weights(self, module: torch.nn.Module) -> dict[str, Any]:
        return {name: value.detach().clone() for name, value in module.state_dict().items()}


class Plain(Lightning):
    name = "gloo"

    def __exit__(self, *_: object) -> None: ...

    def strategy(self, **of_ddp: Any) -> Any:
        return pl.strategies.DDPStrategy(process_group_backend="gloo", **of_ddp)


def door(name: str, job: Any, codec: str) -> Lightning:
    return Lightning(job, codec)


def reference(beside: str, job: Any, door: str) -> Lightning:
    return Plain(job, "none")


def barrier() -> None:
    dist.barrier()
