"""The options that a group of the backend casync is given when it is made: see `c10d`."""

from __future__ import annotations

from datetime import timedelta

import torch
from casync.codecs import specs as codecs
from casync.codecs.compression import given
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.config.rules import Rules
from casync.errors import NotAvailableError

__all__ = ["BackendOptions", "Options", "check_momentum"]


class BackendOptions:
    """The options that `init_process_group("casync", pg_options=...)`, `new_group` and
    `init_device_mesh(backend_override={"dim": ("casync", ...)})` take.

    Args:
        compression: a codec (`"onebit"`, `"powersgd(rank=4)"`) for gradients: the sums and means of float tensors that
            DDP and FSDP send while a backward pass runs. None takes `CASYNC_COMPRESSION`.
        rules: codecs by the name of a call, `{"reduce_scatter.*": "fp16", "*": "none"}`, in place of `compression`.
            Names are `allreduce` and `reduce_scatter`, a dot, and the number of elements.
        min_numel: tensors of fewer elements are exact; None takes `CASYNC_MIN_NUMEL`.
        topology: as in `hvd.allreduce`; None takes `CASYNC_TOPOLOGY`.
        timeout: of an operation of this group; None takes that of `init_process_group`.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals: what is kept of a
            gradient is kept without its scale, which changes between steps.
        compress_all: compress every sum and mean of float tensors, not only gradients: weights that are averaged,
            counts and metrics too. For a group of its own, which only what may be lossy is given.
    """

    def __init__(
        self,
        compression: CompressionLike = None,
        *,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        timeout: timedelta | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        compress_all: bool = False,
    ) -> None:
        self.compression = given(compression, rules)
        self.min_numel = min_numel
        self.topology = topology
        self.grad_scaler = grad_scaler
        self.compress_all = compress_all
        self._timeout = timeout  # torch.distributed looks here


Options = BackendOptions
"""The name of `BackendOptions` before 0.2."""


def check_momentum(rules: Rules) -> None:
    """Raises `NotAvailableError` for a codec that wants what nobody here has."""
    for _, codec in rules.pairs:
        if codecs.takes_momentum(codec):
            raise NotAvailableError(
                f"compression {codec!r} takes over the optimizer's momentum, which a backend of torch.distributed "
                "cannot reach: use casync.torch.DistributedOptimizer"
            )
