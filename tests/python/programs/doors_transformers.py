"""The door of Transformers' Trainer (docs/libraries.md), and beside it the Trainer's own DDP over gloo."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.python.programs import data

torch.set_num_threads(1)
warnings.simplefilter("ignore")


class Model(nn.Module):
    """What the Trainer wants of a model that is not of Transformers: a loss beside its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        said = self.model(x)
        return {"loss": F.mse_loss(said, labels), "logits": said}


class Transformers:
    name = "transformers"

    def __init__(self, job: Any, codec: str) -> None:
        self.job, self.codec = job, codec
        self.rank, self.size = job.rank, job.size
        self.taken = 0

    def __enter__(self) -> Transformers:
        return self

    def __exit__(self, *_: object) -> None:
        import casync.torch as hvd

        hvd.shutdown()

    def patch(self, trainer: Trainer) -> None:
        import casync.transformers

        casync.transformers.patch(trainer, self.codec)

    def rows(self, steps: int) -> list[dict[str, torch.Tensor]]:
        every = data.whole(steps, self.size)
        return [{"x": x, "labels": y} for batch in every for x, y in zip(*batch, strict=True)]

    def trainer(
        self,
        model: nn.Module,
        *,
        steps: int = 5,
        rows: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        kind: type[Trainer] = Trainer,
        optimizer: Any = None,
        **more: Any,
    ) -> Trainer:
        AcceleratorState._reset_state()
        GradientState._reset_state()
        plain = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
        plain |= {"lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0}
        plain |= {"num_train_epochs": 1, "per_device_train_batch_size": data.ROWS, "dataloader_pin_memory": False}
        folder = str(self.job.folder / f"transformers-{self.name}-{self.codec}")
        arguments = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", **(plain | more))
        trainer = kind(
            model,
            arguments,
            train_dataset=rows or self.rows(steps),
            callbacks=callbacks,
            optimizers=(optimizer, None),
        )
        self.patch(trainer)
        return trainer

    def train(self, model: nn.Module, **more: Any) -> dict[str, Any]:
        """Train; what the result of most programs is."""
        trainer = self.trainer(Model(model), **more)
        trainer.train()
        return self.weights(trainer)

    def weights(self, trainer: Trainer) -> dict[str, Any]:
        model: Any = trainer.model
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


class Plain(Transformers):
    name = "gloo"

    def __exit__(self, *_: object) -> None: ...

    def patch(self, trainer: Trainer) -> None: ...


def door(name: str, job: Any, codec: str) -> Transformers:
    return Transformers(job, codec)


def reference(beside: str, job: Any, door: str) -> Transformers:
    return Plain(job, "none")
