"""join: how a rank with less data than the others leaves a loop early."""

from __future__ import annotations

from casync.collectives.objects import allgather_object
from casync.session import default
from casync.tensors.signature import OpKind, OpSignature

__all__ = ["join"]


def join(device: int = -1) -> int:
    """Say that this rank has nothing more to submit; returns the rank that joined last, once all have.

    Until then the others go on: in every allreduce and barrier that all of them submit this rank takes part with zeros,
    whether it knows the name or not, and Average divides by the size of the world. Its residuals and what else its
    codecs keep of their own stay as they are. Operations that need a tensor of every rank (allgather, broadcast, ...)
    raise a `MismatchError` on the others while a rank has joined; the session stays usable.

    Join is of the world: process sets do not know of it. `device` is accepted and not needed.
    """
    owner = default.session()
    registration = owner.register(OpSignature("join", OpKind.JOIN, "uint8", (0,)))
    _, (last,), _ = owner.synchronize_gather(owner.submit(registration, 0, 0, None, wake=False))
    # Ranks have given names to differently many operations that had none: all go on from the highest number. A lower
    # one may still be the name of an operation that nobody has synchronised.
    # And while a rank was away, a monitor may have found fault with a codec.
    fallbacks: dict[str, str] = {}
    for numbers, theirs in allgather_object((owner.call_numbers.all(), owner.codec_states.fallbacks), "join.counts"):
        owner.call_numbers.skip(numbers)
        fallbacks |= theirs
    owner.codec_states.fall_back(fallbacks)
    return last
