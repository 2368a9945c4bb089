"""The facts that ranks must agree on for one operation: its kind, name, dtype, shape, reduction and codec.

No framework is imported here.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Final, NamedTuple

from casync import _constants
from casync._constants import FLOATING_DTYPES, OP_KINDS, REDUCE_OPS
from casync.errors import InvalidArgumentError
from casync.plan.topology import topology_of

__all__ = [
    "CASTS",
    "DTYPES",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "OpKind",
    "Product",
    "Sum",
    "OpSignature",
    "bad_name",
    "codec_for_dtype",
    "no_rows",
    "resolve_op",
    "user_name",
]

# Numbers are the core's, and these Horovod's too.
Average: Final = REDUCE_OPS.index("Average")
"""`op=`: the sum over all ranks divided by their number. Of integers it truncates towards zero."""
Sum: Final = REDUCE_OPS.index("Sum")
"""`op=`: the sum over all ranks."""
Adasum: Final = REDUCE_OPS.index("Adasum")
"""`op=`: gradients add up as far as they differ in direction, and are averaged as far as they do not. Float tensors."""
Min: Final = REDUCE_OPS.index("Min")
"""`op=`: of each element the smallest; uncompressed."""
Max: Final = REDUCE_OPS.index("Max")
"""`op=`: of each element the largest; uncompressed."""
Product: Final = REDUCE_OPS.index("Product")
"""`op=`: of each element the product; uncompressed."""


class OpKind:
    """The kinds of operation, as the core numbers them."""

    ALLREDUCE: Final = OP_KINDS.index("allreduce")
    ALLGATHER: Final = OP_KINDS.index("allgather")
    BROADCAST: Final = OP_KINDS.index("broadcast")
    BARRIER: Final = OP_KINDS.index("barrier")
    REDUCESCATTER: Final = OP_KINDS.index("reducescatter")
    ALLTOALL: Final = OP_KINDS.index("alltoall")
    JOIN: Final = OP_KINDS.index("join")


DTYPES: Final = {name: code for code, name in enumerate(_constants.DTYPES)}
"""dtype name -> the core's number."""

CASTS: Final = frozenset(("fp16", "bf16", "always(fp16)", "always(bf16)"))
"""The codecs that are no more than a 16-bit dtype: they keep nothing, and integers pass through them."""


def resolve_op(op: int | None, average: bool | None) -> int:
    """Horovod's two ways to say how to reduce, as one number. Neither given: Average."""
    if op is not None:
        if average is not None:
            raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
        if type(op) is not int or not 0 <= op < len(REDUCE_OPS):
            raise InvalidArgumentError(f"op={op!r} is not one of {', '.join(REDUCE_OPS)}")
        return op
    if average is not None:
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning, stacklevel=3
        )
        return Average if average else Sum
    return Average


def codec_for_dtype(spec: str, dtype: str) -> str:
    """`spec`, or "none" where a 16-bit cast has nothing to do: integers pass through it, as in Horovod.

    Every other codec is left for the core to accept or to refuse by name.
    """
    return "none" if spec in CASTS and dtype not in FLOATING_DTYPES else spec


def no_rows(kind: int) -> InvalidArgumentError:
    """Make the error for a tensor without dimensions, where the operation needs rows."""
    return InvalidArgumentError(f"tried to {OP_KINDS[kind]} a rank-zero tensor, which has no rows: reshape it to (1,)")


def bad_name(name: object) -> InvalidArgumentError:
    """Make the error for a name that is not valid. Callers look only after a failure, so a valid name costs nothing."""
    return InvalidArgumentError(f"name={name!r}: it must be a string that UTF-8 can write, or None to number the calls")


def _check_factor(name: str, value: Any) -> None:
    try:
        is_number = not math.isnan(value)
    except (TypeError, OverflowError):
        is_number = False
    if not is_number:
        raise InvalidArgumentError(f"{name}={value!r}: it must be a number that a float holds, and not NaN")


def user_name(name: str) -> str:
    """A tensor's name as its user gave it, without the `allreduce.` or `reducescatter.` of `Session.tensor_name`."""
    for kind in (OpKind.ALLREDUCE, OpKind.REDUCESCATTER):
        name = name.removeprefix(f"{OP_KINDS[kind]}.")
    return name


class OpSignature(NamedTuple):
    """All that ranks must agree on for one tensor; also the key under which a registration is remembered.

    `shape` of an allgather or an alltoall leaves the first extent out: rows are each rank's own, and go with the
    submit.
    """

    name: str
    kind: int
    dtype: str
    shape: tuple[int, ...]
    op: int = Sum
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    compression: str = "none"
    topology: str = "auto"
    on_device: bool = False
    priority: int = 0

    def signature(self) -> dict[str, Any]:
        """Return the terms as the core has them. Raises `InvalidArgumentError` for an impossible topology or factor."""
        _check_factor("prescale_factor", self.prescale)
        _check_factor("postscale_factor", self.postscale)
        if self.kind in (OpKind.ALLGATHER, OpKind.ALLTOALL):
            rows, cols, dims = 0, math.prod(self.shape), f"({', '.join(['*', *map(str, self.shape)])})"
        else:
            rows, cols, dims = (self.shape or (1,))[0], math.prod(self.shape[1:]), str(tuple(self.shape))
        return {
            "kind": self.kind,
            "dtype": DTYPES[self.dtype],
            "op": self.op,
            "rows": rows,
            "cols": cols,
            "root": self.root,
            "prescale": self.prescale,
            "postscale": self.postscale,
            "dims": dims,
            "compression": codec_for_dtype(self.compression, self.dtype),
            "topology": topology_of(self.topology),
            "on_device": self.on_device,
            "priority": self.priority,
        }
