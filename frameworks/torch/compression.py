"""Codecs by name: `Compression.onebit()` is the spec string "onebit" with a docstring.

`none`, `fp16` and `bf16` also have Horovod's `compress` and `decompress`, for scripts that call them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from casync.codecs import Codec

__all__ = ["Compression"]


class _Cast(Codec):
    """A codec that is a change of dtype, or none at all."""

    # Not a field: it follows from the spec.
    _dtypes: ClassVar[dict[str, torch.dtype]] = {"fp16": torch.float16, "bf16": torch.bfloat16}

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """`tensor` in 16 bits and what `decompress` needs; integers pass through."""
        wanted = self._dtypes.get(self.spec)
        cast = tensor if wanted is None or not tensor.dtype.is_floating_point else tensor.to(wanted)
        return cast, tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """`tensor` in the dtype it had before `compress`."""
        return tensor.to(ctx)


class Compression:
    """What may stand in `compression=`; the spec strings ("onebit", "terngrad(bits=4)") may as well, and a table of
    patterns for names with a codec each, `{"*.bias": "none", "*": "onebit"}`.

    Gradients of fewer than `Config.min_numel` elements go uncompressed; `"always(onebit)"` and a rule that is a name in
    full override that. Integer tensors, Min, Max and Product go with `none` alone (`fp16` and `bf16` let integers
    pass).
    """

    none: ClassVar[_Cast] = _Cast("none")
    """Lossless. In `DistributedOptimizer` also: whatever `CASYNC_COMPRESSION` says; the string "none" overrides
    that.
    """

    fp16: ClassVar[_Cast] = _Cast("fp16")
    """IEEE half precision on the wire: half the bytes of float32."""

    bf16: ClassVar[_Cast] = _Cast("bf16")
    """bfloat16 on the wire: half the bytes of float32, the range of float32, 8 bits of precision."""

    @staticmethod
    def onebit() -> Codec:
        """The sign of each element and two means per group, with error feedback (Seide 2014): about 1/32 of float32."""
        return Codec("onebit")

    @staticmethod
    def terngrad(bits: int = 2) -> Codec:
        """Stochastic rounding to `bits` = 2, 4 or 8 bits per element (Wen 2017): 1/16, 1/8 or 1/4 of float32."""
        return Codec(f"terngrad(bits={bits})")
