"""Codecs by name: `Compression.onebit()` is the spec string "onebit" with a docstring.

`none`, `fp16` and `bf16` also have Horovod's `compress` and `decompress`, for scripts that call them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from casync.codecs.specs import Codec, CodecsByName, CompressionLike
from casync.errors import InvalidArgumentError
from casync.tensors.adaptor import adaptor_of

__all__ = ["Cast", "Compression", "given"]


class Cast(Codec):
    """A codec that is a change of dtype, or none at all."""

    # Not a field: it follows from the spec.
    _dtypes: ClassVar[dict[str, str]] = {"fp16": "float16", "bf16": "bfloat16"}

    def compress(self, tensor: Any) -> tuple[Any, str]:
        """`tensor` in 16 bits and what `decompress` needs; integers pass through."""
        adaptor = adaptor_of(tensor)
        dtype = adaptor.dtype(tensor)
        wanted = self._dtypes.get(self.spec, dtype)
        return adaptor.cast(tensor, wanted), dtype

    def decompress(self, tensor: Any, ctx: str) -> Any:
        """`tensor` in the dtype it had before `compress`, which gave `ctx` with it."""
        return adaptor_of(tensor).cast(tensor, ctx)


class Compression:
    """The values for `compression=`. Spec strings ("onebit", "terngrad(bits=4)") may stand there too, and a table of
    patterns for names with a codec each, `{"*.bias": "none", "*": "onebit"}`. `"covap(fp16, interval=4)"` synchronises
    a gradient in one of four steps, with that codec.

    Gradients of fewer than `Config.min_numel` elements go uncompressed; `"always(onebit)"` and a rule that is a name in
    full override that. Integer tensors, Min, Max and Product go with `none` alone (`fp16` and `bf16` let integers
    pass).
    """

    none: ClassVar[Cast] = Cast("none")
    """Lossless. In an optimizer also: whatever `CASYNC_COMPRESSION` says; the string "none" overrides that."""

    fp16: ClassVar[Cast] = Cast("fp16")
    """IEEE half precision on the wire: half the bytes of float32."""

    bf16: ClassVar[Cast] = Cast("bf16")
    """bfloat16 on the wire: half the bytes of float32, the range of float32, 8 bits of precision."""

    @staticmethod
    def onebit() -> Codec:
        """The sign of each element and two means per group, with error feedback (Seide 2014): about 1/32 of float32."""
        return Codec("onebit")

    @staticmethod
    def terngrad(bits: int = 2) -> Codec:
        """Stochastic rounding to `bits` = 2, 4 or 8 bits per element (Wen 2017): 1/16, 1/8 or 1/4 of float32."""
        return Codec(f"terngrad(bits={bits})")


def given(compression: CompressionLike, rules: CodecsByName | None) -> CompressionLike:
    """Return the one of the two that a user has given: a codec for everything, or codecs by name. Raises
    `InvalidArgumentError` if it is both.
    """
    if rules is None:
        return compression
    if compression is not None and compression is not Compression.none:
        raise InvalidArgumentError(
            f"compression={compression!r} and rules={rules!r}: give one of them. rules= are codecs by name, and "
            'compression= is one codec for everything, the same as rules={"*": codec}'
        )
    return rules
