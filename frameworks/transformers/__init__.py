"""CaSync for the Trainer of Transformers: `casync.transformers.patch(trainer, "onebit")` before `trainer.train()`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import casync.torch as hvd
from casync.accelerate import ddp_kwargs

import casync
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.errors import CasyncError
from casync.observe.compression_monitor import CompressionMonitor
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from .relaxed import diloco, local_sgd

__all__ = ["diloco", "local_sgd", "patch"]


def patch(
    trainer: Trainer,
    compression: CompressionLike = None,
    *,
    rules: CodecsByName | None = None,
    min_numel: int | None = None,
    topology: str | None = None,
    monitor: CompressionMonitor | None = None,
) -> None:
    """Have `trainer` synchronise its gradients through CaSync. Its other settings of DDP stay.

    What codecs keep is saved in the folder of each checkpoint, and loaded from the one with which training resumes,
    wherever that lies.

    Args:
        compression: a codec, or codecs by the names of the model's parameters, as in `casync.torch.ddp_state`. None
            takes `CASYNC_COMPRESSION`.
        rules, min_numel, topology, monitor: as there. The scaler of the trainer's accelerator is found.
    """
    state = _State()
    trainer.add_callback(state)
    train, create = trainer.train, trainer.create_accelerator_and_postprocess

    def hand_over() -> None:
        given = trainer.accelerator.ddp_handler
        others = {} if given is None else given.to_kwargs()
        trainer.accelerator.ddp_handler = ddp_kwargs(
            compression, rules=rules, min_numel=min_numel, topology=topology, monitor=monitor, **others
        )

    def resuming(resume_from_checkpoint: Any = None, *arguments: Any, **more: Any) -> Any:
        state.source = resume_from_checkpoint
        if resume_from_checkpoint is True:
            state.source = get_last_checkpoint(trainer.args.output_dir)  # type: ignore[no-untyped-call]
        return train(resume_from_checkpoint, *arguments, **more)

    def created(*arguments: Any, **more: Any) -> Any:
        """Create it, and hand over again. A search of hyperparameters makes one for each trial."""
        made = create(*arguments, **more)
        hand_over()
        return made

    hand_over()
    vars(trainer).update(train=resuming, create_accelerator_and_postprocess=created)


class _State(TrainerCallback):
    def __init__(self) -> None:
        self.source: str | None = None
        """The folder of the checkpoint with which training resumes."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if hvd.is_initialized():
            casync.save_state(Path(args.output_dir) / f"checkpoint-{state.global_step}" / "casync")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.source and state.global_step > 0:  # it resumes
            hvd.init()
            try:
                casync.load_state(Path(self.source) / "casync")
            except CasyncError as error:
                warnings.warn(f"what codecs kept begins anew: {error}", stacklevel=2)
