"""Bytes of all ranks: what objects, agreements between ranks and checkpoints are made of. No framework is imported."""

from __future__ import annotations

import ctypes
from typing import Any

from casync.observe.metrics import OWN
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature, Sum

__all__ = ["gather_bytes", "gather_present", "present"]


def gather_bytes(session: Session, name: str, data: bytes | bytearray) -> list[memoryview]:
    """Return what each rank gave as `data`, in rank order. Collective over the ranks of `session`; blocks.

    Args:
        session: over the ranks that take part.
        name: under which the ranks meet, as in an allgather.
        data: this rank's; its length is its own, and may be 0.
    """
    memory = (ctypes.c_char * len(data)).from_buffer(data if isinstance(data, bytearray) else bytearray(data))
    registration = session.register(
        OpSignature(session.tensor_name(OpKind.ALLGATHER, name), OpKind.ALLGATHER, "uint8", ())
    )
    handle = session.submit(registration, ctypes.addressof(memory), 0, memory, rows=len(data), wake=False)
    everything, lengths, _ = session.synchronize_gather(handle)
    whole, each, begin = memoryview(everything), [], 0
    for length in lengths:
        each.append(whole[begin : begin + length])
        begin += length
    return each


def present(session: Session, name: str, number: int) -> dict[int, int]:
    """The `number` of each rank that has not joined, by rank. All of these ranks call it, and it blocks.

    Args:
        session: over the ranks that take part.
        name: under which the ranks meet.
        number: this rank's, of 64 bits and not 0.
    """
    numbers = (ctypes.c_int64 * session.size)()
    numbers[session.rank] = number
    _sum(session, f"{name}.numbers", "int64", numbers)
    return {rank: number for rank, number in enumerate(numbers) if number != 0}


def gather_present(session: Session, name: str, data: bytes) -> dict[int, memoryview]:
    """Do as `gather_bytes`, without the ranks that have joined; by rank. Collective over the others. It sums what all
    give, since that goes on without such ranks, so it is for what is small or rare.
    """
    lengths = present(session, name, len(data) + 1)
    everything = (ctypes.c_uint8 * sum(length - 1 for length in lengths.values()))()
    places, end = {}, 0
    for rank, length in lengths.items():
        places[rank] = slice(end, end + length - 1)
        end += length - 1
    everything[places[session.rank]] = list(data)
    _sum(session, f"{name}.bytes", "uint8", everything)
    whole = memoryview(everything).cast("B")
    return {rank: whole[place] for rank, place in places.items()}


def _sum(session: Session, name: str, dtype: str, values: Any) -> None:
    """Add up the arrays of all ranks in place."""
    terms = OpSignature(f"{OWN}{name}", OpKind.ALLREDUCE, dtype, (len(values),), Sum)
    address = ctypes.addressof(values)
    session.synchronize(session.submit(session.register(terms), address, address, values, wake=False))
