"""CaSync for Lightning: `Trainer(strategy=casync.lightning.CasyncStrategy("onebit"))` in place of `strategy="ddp"`."""

import shutil
import warnings
from typing import Any

import casync.torch as hvd

import casync
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.errors import CasyncError, InvalidArgumentError
from casync.observe.compression_monitor import CompressionMonitor
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from .relaxed import DiLoCoStrategy, LocalSGDStrategy

__all__ = ["CasyncStrategy", "DiLoCoStrategy", "LocalSGDStrategy"]


class CasyncStrategy(DDPStrategy):
    """DDP whose gradients CaSync reduces, on GPUs and on CPUs. What codecs keep is saved beside each checkpoint.

    Args:
        compression: a codec, or codecs by the names of the module's parameters, as in `casync.torch.ddp_state`. None
            takes `CASYNC_COMPRESSION`.
        rules, min_numel, topology, monitor: as there. The scaler of the precision plugin is found.
        ddp: what `DDPStrategy` takes. Raises `InvalidArgumentError` for a hook, since DDP has room for one.
    """

    def __init__(
        self,
        compression: CompressionLike = None,
        *,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        monitor: CompressionMonitor | None = None,
        **ddp: Any,
    ) -> None:
        for name in ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper"):
            if ddp.get(name) is not None:
                raise InvalidArgumentError(f"{name}: DDP takes one hook, and CasyncStrategy is it")
        super().__init__(**ddp)
        self._settings: dict[str, Any] = {
            "compression": compression, "rules": rules, "min_numel": min_numel, "topology": topology,
            "monitor": monitor,
        }  # fmt: skip
        self._hook_state: Any = None

    def _register_ddp_hooks(self) -> None:
        """Lightning's own registers no hook on a CPU."""
        hvd.init()
        scaler = getattr(self.precision_plugin, "scaler", None)
        model: Any = self.model  # in DDP
        names = model.module.named_parameters()
        self._hook_state = hvd.ddp_state(named_parameters=names, grad_scaler=scaler, **self._settings)
        model.register_comm_hook(self._hook_state, hvd.ddp_hook)

    def teardown(self) -> None:
        """Release the hook's state at the end of `fit()`. Another one may begin after it from a checkpoint."""
        if self._hook_state is not None:
            self._hook_state.release()
        super().teardown()

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if hvd.is_initialized():  # training has begun
            casync.save_state(f"{filepath}.casync")

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **more: Any) -> Any:
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            hvd.init()
            try:
                casync.load_state(f"{checkpoint_path}.casync")
            except CasyncError as error:
                warnings.warn(f"what codecs kept begins anew: {error}", stacklevel=2)
        return super().load_checkpoint(checkpoint_path, *arguments, **more)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(f"{filepath}.casync", ignore_errors=True)
