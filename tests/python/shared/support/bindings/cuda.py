"""casync.torch with tensors on a GPU in the suite: for `make test-gpu`."""

from __future__ import annotations

from typing import Any

import casync.torch
import numpy as np
import torch

from support.arrays import Array
from support.bindings import torch as on_host


class Binding(on_host.Binding):
    name = "cuda"
    cycles = 20

    def adaptor(self) -> Any:
        return casync.torch

    def tensor(self, array: Array) -> Any:
        return super().tensor(array).cuda()

    def array(self, tensor: Any) -> Array:
        """A GPU's arithmetic makes other NaNs than a CPU's: all of them become NumPy's here."""
        values = super().array(tensor.cpu())
        if tensor.is_floating_point():
            values[np.isnan(values)] = np.nan
        return values

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda

    def assert_counts(self, counts: Any, expected: Array) -> None:
        """Received splits lie where the splits do: those of a list are on the host, as in Horovod."""
        assert isinstance(counts, torch.Tensor) and counts.dtype == torch.int32
        assert counts.tolist() == expected.tolist()
