"""CaSync for the Trainer of Transformers: `casync.transformers.patch(trainer, "onebit")` before `trainer.train()`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import casync.torch as hvd
from casync.accelerate import ddp_kwargs

import casync
from casync.errors import CasyncError
from transformers import Trainer, TrainerCallback

__all__ = ["patch"]


def patch(trainer: Trainer, compression: Any = "none", *, topology: str | None = None) -> None:
    """Have `trainer` synchronise its gradients through CaSync. Its other settings of DDP stay.

    What codecs keep is saved in the folder of each checkpoint, and loaded from the last one of `output_dir` when
    training resumes there.

    Args:
        compression: a codec, or codecs by the names of the model's parameters, as in `casync.torch.ddp_state`.
        topology: as there.
    """
    given = trainer.accelerator.ddp_handler
    others = {} if given is None else given.to_kwargs()
    trainer.accelerator.ddp_handler = ddp_kwargs(compression, topology=topology, **others)
    trainer.add_callback(_State())


class _State(TrainerCallback):
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if hvd.is_initialized():
            casync.save_state(_folder(args, state))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > 0:  # it resumes
            hvd.init()
            try:
                casync.load_state(_folder(args, state))
            except CasyncError as error:
                warnings.warn(f"what codecs kept begins anew: {error}", stacklevel=2)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "casync"
