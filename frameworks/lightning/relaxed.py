"""Local SGD and DiLoCo for Lightning: `Trainer(strategy=casync.lightning.DiLoCoStrategy(sync_every=100))`.

Each rank trains a model of its own, without DDP, and every so many steps of its optimizer a round is made.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import casync.torch as hvd
import torch
from casync.torch import relaxed_doors

from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

__all__ = ["DiLoCoStrategy", "LocalSGDStrategy"]


class LocalSGDStrategy(DDPStrategy):
    """Local SGD: every `sync_every` steps of the optimizer the parameters become the mean of the ranks' own.

    Validation within `fit()` sees the global parameters, those of the last round, and so do metrics and early stopping.
    A checkpoint has the global parameters too. What a rank needs to go on exactly is saved beside it, in a folder with
    `.casync` after its name. After `fit()` all ranks have the same parameters, the last steps included. Of several
    optimizers the last one of `configure_optimizers` ends a step.

    Args:
        sync_every: steps of the optimizer between two rounds.
        settings: what `casync.torch.LocalSGD` takes beside model and optimizer: `compression`, `delay` and so on.
        ddp: what `DDPStrategy` takes for starting processes, as `process_group_backend`, `timeout`, `start_method`.
    """

    _parts = frozenset(
        ("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin")
        + ("process_group_backend", "timeout", "start_method")
    )  # of DDPStrategy's arguments those that are not about DDP itself

    def __init__(self, sync_every: int, **settings: Any) -> None:
        super().__init__(**{name: settings.pop(name) for name in self._parts & settings.keys()})
        self._settings = {"sync_every": sync_every, **settings}
        self._source: Any = None  # the checkpoint from which fit() goes on
        self._evaluation = contextlib.ExitStack()
        self.local: Any = None
        """The `casync.torch.LocalSGD` or `casync.torch.DiLoCo` from the begin of `fit()` on."""

    def _make(self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> hvd.LocalSGD:
        return hvd.LocalSGD(model, optimizers, **self._settings)

    # --- Lightning's hooks --------------------------------------------------------------------------------------------

    def configure_ddp(self) -> None:
        """Leave the model without DDP. That all ranks begin alike is done in `setup`."""

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            hvd.init()
            assert self.lightning_module is not None
            self.local = self._make(self.lightning_module, self.optimizers)
            self.local.__enter__()

    def on_validation_start(self) -> None:
        if self.local is not None:
            self._evaluation.enter_context(self.local.global_parameters())

    def on_validation_end(self) -> None:
        self._evaluation.close()

    def on_train_end(self) -> None:
        self._end(None)

    def teardown(self) -> None:
        """Lightning comes here after an error too, where the other ranks may be gone."""
        self._evaluation.close()
        self._end(RuntimeError)
        super().teardown()

    def _end(self, error: type[BaseException] | None) -> None:
        local, self.local = self.local, None
        if local is not None:
            local.__exit__(error, None, None)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the global parameters, as they are now."""
        if self.local is None:
            return super().lightning_module_state_dict()
        self.local.flush()
        with relaxed_doors.global_parameters(self.local):
            state = super().lightning_module_state_dict()
            return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in state.items()}

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.local is not None:
            relaxed_doors.save(f"{filepath}.casync", self.local, self.optimizers)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **more: Any) -> Any:
        self._source = checkpoint_path
        return super().load_checkpoint(checkpoint_path, *arguments, **more)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        super().load_optimizer_state_dict(checkpoint)
        if self.local is not None:
            relaxed_doors.load(f"{self._source}.casync", self.local, self.optimizers)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(f"{filepath}.casync", ignore_errors=True)


class DiLoCoStrategy(LocalSGDStrategy):
    """DiLoCo: as `LocalSGDStrategy`, with an outer optimizer (Douillard et al. 2023).

    Args:
        sync_every: steps of the optimizer between two rounds of one fragment.
        outer_optimizer: a function of the parameters that returns a torch.optim.Optimizer over them, as
            `functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)` is, which None takes.
        fragments: a function of the LightningModule that returns a list of its modules, each a fragment. None: the
            whole module, or `num_fragments` parts of it.
        settings: what `casync.torch.DiLoCo` takes beside these: `compression`, `fragment_sync_delay`, `num_fragments`
            and so on; and what `LocalSGDStrategy` takes of `DDPStrategy`.
    """

    def __init__(
        self,
        sync_every: int = 100,
        *,
        outer_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
        fragments: Callable[[Any], Sequence[torch.nn.Module]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(sync_every, **settings)
        self._outer, self._fragments = outer_optimizer, fragments

    def _make(self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> hvd.LocalSGD:
        outer = None
        if self._outer is not None:
            outer = self._outer([parameter for parameter in model.parameters() if parameter.requires_grad])
        parts = model if self._fragments is None else self._fragments(model)
        return hvd.DiLoCo(parts, optimizers, outer, **self._settings)
