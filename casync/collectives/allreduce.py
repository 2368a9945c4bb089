"""allreduce: the tensor reduced over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casync.codecs import specs as codecs
from casync.codecs.specs import CompressionLike, codec_text
from casync.collectives.waiting import PendingResult
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError
from casync.session.call_numbers import is_numbered
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import OpKind, OpSignature, bad_name

__all__ = ["UNSCALED", "codec_of", "submit", "submit_registered", "terms_of"]

UNSCALED = (1.0, 1.0)
"""No prescale and no postscale."""


def submit(
    tensors: Tensors[T],
    tensor: Any,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    compression: CompressionLike,
    topology: str | None,
    *,
    in_place: bool,
    wake: bool = True,
    priority: int = 0,
) -> int:
    """The handle of an allreduce; arguments as `Collectives.allreduce_async` has them."""
    owner = session_of(process_set)
    if compression is not None and isinstance(compression, Mapping):  # an ABC, which takes its time
        name = owner.tensor_name(OpKind.ALLREDUCE, name)
        with about(name):
            compression = codec_of(compression, name, tensors.shape(tensors.admit(tensor)))
    try:
        if in_place and scales == UNSCALED:  # all in one call, for a name that is used as it was the last time
            handle: int | None = owner.shortcuts.submit(name, tensor, wake, op, scales, compression, topology, priority)
            if handle is not None:
                return handle
        registration = owner.shortcuts.registration(name, tensor, op, scales, compression, topology, priority)
    except UnicodeEncodeError:
        raise bad_name(name) from None
    given = tensor
    with about(name):
        tensor = tensors.admit(tensor)
        if in_place:
            tensors.check_in_place(tensor)
    if registration is None:
        terms = terms_of(tensors, owner, tensor, name, op, scales, compression, topology)
        registration = owner.register(terms._replace(priority=_checked(priority)))
        if name is not None and type(given) is tensors.kind:
            owner.shortcuts.remember(registration, name, given, op, scales, compression, topology, priority)
    return submit_registered(tensors, owner, registration, tensor, scales, in_place=in_place, wake=wake)


def _checked(priority: int) -> int:
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise InvalidArgumentError(f"priority={priority!r}: it must be a whole number from -2147483648 to 2147483647")
    return priority


def terms_of(
    tensors: Tensors[T],
    owner: Session,
    tensor: T,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    compression: CompressionLike,
    topology: str | None,
) -> OpSignature:
    """Return what the ranks must agree on for `tensor`, which `Tensors.admit` has accepted."""
    with about(name):
        dtype = tensors.dtype(tensor)
        if dtype == "bool":
            raise InvalidArgumentError("bool cannot be reduced: use uint8, or allgather")
    full = owner.tensor_name(OpKind.ALLREDUCE, name)
    route = owner.config.topology if topology is None else topology
    on_device = tensors.device(tensor) is not None
    shape = tensors.shape(tensor)
    codec = codec_of(compression, full, shape)
    return OpSignature(full, OpKind.ALLREDUCE, dtype, shape, op, 0, *scales, codec, route, on_device)


def codec_of(compression: CompressionLike, name: str, shape: Shape) -> str:
    """The codec of the tensor `name`, from what a user gives one operation: None, a codec, or rules. Raises
    `InvalidArgumentError` for covap where the tensor has a number for a name, which is another one in the next step.
    """
    if compression is None:
        return "none"
    if isinstance(compression, Mapping):
        codec = codecs.codec_by_name(codecs.rules_of(compression), name, shape)
    else:
        codec = codec_text(compression)
    if is_numbered(name) and codecs.interval_of(codec) > 1:
        raise InvalidArgumentError(
            f"{codec}: what is not sent waits under the tensor's name, and this one has none: give it as name="
        )
    return codec


def submit_registered(
    tensors: Tensors[T],
    owner: Session,
    registration: int,
    tensor: T,
    scales: tuple[float, float],
    *,
    in_place: bool,
    wake: bool,
) -> int:
    """Submit `tensor`; what is not contiguous, or is scaled, works on a copy."""
    if scales != UNSCALED:
        copy = tensors.scaled(tensor, scales[0])
        address = tensors.address(copy)
        keep = PendingResult(tensors, copy, copy, tensor if in_place else None, scales[1])
        return owner.submit(registration, address, address, keep, wake=wake, device=tensors.device(copy))
    source = tensors.contiguous(tensor)
    address = tensors.address(source)
    if in_place and source is tensor:
        return owner.submit(registration, address, address, tensor, wake=wake, device=tensors.device(tensor))
    if in_place:
        keep = PendingResult(tensors, source, source, tensor)
        return owner.submit(registration, address, address, keep, wake=wake, device=tensors.device(source))
    result = tensors.empty(tensors.shape(source), source)
    keep = PendingResult(tensors, source, result, None)
    device = tensors.device(source, result)
    return owner.submit(registration, address, tensors.address(result), keep, wake=wake, device=device)
