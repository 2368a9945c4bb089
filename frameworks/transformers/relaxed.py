"""Local SGD and DiLoCo for the Trainer: `casync.transformers.diloco(trainer, sync_every=100)` before `train()`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import casync.torch as hvd
import torch
from casync.torch import relaxed_doors
from casync.torch.relaxed import LocalSGD

from casync.errors import NotAvailableError
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

__all__ = ["LocalSteps", "diloco", "local_sgd"]

_Make = Callable[[torch.nn.Module, torch.optim.Optimizer], LocalSGD]


def local_sgd(trainer: Trainer, sync_every: int, **settings: Any) -> LocalSteps:
    """Have each rank of `trainer` train alone, and every `sync_every` steps the parameters become the mean of all.

    Evaluation during training sees the global parameters, those of the last round, and checkpoints have them; what a
    rank needs to go on exactly is saved in the checkpoint's folder too. After `train()` all ranks have the same
    parameters, the last steps included. `average_tokens_across_devices` is set to False: a step has this rank's tokens.

    Args:
        sync_every: steps of the optimizer between two rounds.
        settings: what `casync.torch.LocalSGD` takes beside model and optimizer: `compression`, `delay` and so on.
    """

    def make(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> LocalSGD:
        return hvd.LocalSGD(model, optimizer, sync_every, **settings)

    return LocalSteps(trainer, make)


def diloco(
    trainer: Trainer,
    sync_every: int = 100,
    *,
    outer_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    **settings: Any,
) -> LocalSteps:
    """As `local_sgd`, with an outer optimizer (Douillard et al. 2023).

    Args:
        sync_every: steps of the optimizer between two rounds of one fragment.
        outer_optimizer: a function of the parameters that returns a torch.optim.Optimizer over them, as
            `functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)` is, which None takes.
        settings: what `casync.torch.DiLoCo` takes beside these: `compression`, `num_fragments` and so on.
    """

    def make(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> LocalSGD:
        outer = outer_optimizer and outer_optimizer([one for one in model.parameters() if one.requires_grad])
        return hvd.DiLoCo(model, optimizer, outer, sync_every, **settings)

    return LocalSteps(trainer, make)


class LocalSteps(TrainerCallback):
    """What the Trainer calls, and what it calls in place of its own methods."""

    def __init__(self, trainer: Trainer, make: _Make) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise NotAvailableError("local steps need a whole model on each rank: use neither FSDP nor DeepSpeed")
        self._trainer, self._make = trainer, make
        self._source: str | None = None  # the folder of the checkpoint with which training resumes
        self.local: LocalSGD | None = None
        """The `casync.torch.LocalSGD` or `casync.torch.DiLoCo` while training is under way."""
        trainer.args.average_tokens_across_devices = False
        trainer.add_callback(self)
        self._train, self._load_best_model = trainer.train, trainer._load_best_model
        self._evaluate, self._save_model = trainer.evaluate, trainer.save_model
        vars(trainer).update(
            train=self._training, evaluate=self._evaluating, save_model=self._saving, _load_best_model=self._loading
        )

    def _training(self, resume_from_checkpoint: Any = None, *arguments: Any, **more: Any) -> Any:
        self._source = resume_from_checkpoint
        if resume_from_checkpoint is True:
            output = self._trainer.args.output_dir
            self._source = get_last_checkpoint(output)  # type: ignore[no-untyped-call]
        try:
            return self._train(resume_from_checkpoint, *arguments, **more)
        finally:
            self._end(RuntimeError)  # where training has not come to its end

    def _evaluating(self, *arguments: Any, **more: Any) -> Any:
        with relaxed_doors.global_parameters(self.local):
            return self._evaluate(*arguments, **more)

    def _saving(self, *arguments: Any, **more: Any) -> Any:
        if self.local is not None:
            self.local.flush()
        with relaxed_doors.global_parameters(self.local):
            return self._save_model(*arguments, **more)

    def _loading(self) -> None:
        """The best model comes after the last steps have been averaged, in their place."""
        self._end(None)
        self._load_best_model()

    def _end(self, error: type[BaseException] | None) -> None:
        local, self.local = self.local, None
        if local is not None:
            local.__exit__(error, None, None)

    # --- what the Trainer calls ---------------------------------------------------------------------------------------

    def _optimizer(self) -> torch.optim.Optimizer:
        prepared: Any = self._trainer.optimizer
        optimizer: torch.optim.Optimizer = getattr(prepared, "optimizer", prepared)  # without Accelerate's around it
        return optimizer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end(RuntimeError)  # the Trainer begins anew with smaller batches where memory ran out
        hvd.init()
        local = self._make(self._trainer.model_wrapped, self._optimizer())
        if self._source and state.global_step > 0:  # it resumes
            relaxed_doors.load(Path(self._source) / "casync", local, [self._optimizer()])
        self.local = local.__enter__()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.local is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "casync"
            relaxed_doors.save(folder, self.local, [self._optimizer()])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end(None)
