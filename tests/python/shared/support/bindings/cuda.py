"""casync.torch with tensors on a GPU in the suite: for `make test-gpu`."""

from __future__ import annotations

from typing import Any

import casync.torch
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
        return super().array(tensor.cpu())

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda
