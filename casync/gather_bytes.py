"""Bytes of all ranks: what objects, agreements between ranks and checkpoints are made of. No framework is imported."""

from __future__ import annotations

import ctypes

from casync.session import Session
from casync.terms import OpKind, Terms, tensor_name

__all__ = ["gather_bytes"]


def gather_bytes(session: Session, name: str, data: bytes | bytearray) -> list[memoryview]:
    """What each rank gave as `data`, in rank order. Collective over the ranks of `session`; blocks.

    Args:
        session: over the ranks that take part.
        name: under which the ranks meet, as in an allgather.
        data: this rank's; its length is its own, and may be 0.
    """
    memory = (ctypes.c_char * len(data)).from_buffer(data if isinstance(data, bytearray) else bytearray(data))
    registration = Terms(tensor_name(session, OpKind.ALLGATHER, name), OpKind.ALLGATHER, "uint8", ()).register(session)
    handle = session.submit(registration, ctypes.addressof(memory), 0, memory, rows=len(data), wake=False)
    everything, lengths, _ = session.synchronize_gather(handle)
    whole, each, begin = memoryview(everything), [], 0
    for length in lengths:
        each.append(whole[begin : begin + length])
        begin += length
    return each
