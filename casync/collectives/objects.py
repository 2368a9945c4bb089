"""Any Python object on all ranks, pickled by cloudpickle. All are collective and block."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from casync.session.default import GLOBAL_PROCESS_SET, session_of
from casync.session.gather_bytes import gather_bytes
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import OpKind, OpSignature, Sum

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = GLOBAL_PROCESS_SET
) -> Any:
    """`root_rank`'s object, pickled by cloudpickle there and unpickled on every other rank; on the root `obj` itself.
    Blocks.

    Args:
        obj: anything that can be pickled; ignored on the other ranks.
        root_rank: its number in the world, also where a process set is given.
        name: tells concurrent calls apart.
        process_set: the ranks that take part; all by default.
    """
    session, root = session_of(process_set), process_set.root(root_rank)
    mine = cloudpickle.dumps(obj) if session.rank == root else b""
    # Ranks that disagree about the root learn it here. The object itself then goes by an allgather to which one rank
    # contributes: its size may differ from call to call without a new negotiation.
    meeting = session.tensor_name(OpKind.BROADCAST, f"{name or 'object'}.root")
    registration = session.register(OpSignature(meeting, OpKind.BROADCAST, "uint8", (0,), Sum, root))
    session.synchronize(session.submit(registration, 0, 0, None, wake=False))
    everyones = gather_bytes(session, f"{name or 'object'}.bytes", mine)
    return obj if session.rank == root else pickle.loads(everyones[root])


def allgather_object(obj: Any, name: str | None = None, *, process_set: ProcessSet = GLOBAL_PROCESS_SET) -> list[Any]:
    """The objects of all ranks of the set, in rank order, pickled by cloudpickle. Blocks.

    Args:
        obj: anything that can be pickled.
        name: tells concurrent calls apart.
        process_set: the ranks that take part; all by default.
    """
    everyones = gather_bytes(session_of(process_set), f"{name or 'object'}.all", cloudpickle.dumps(obj))
    return [pickle.loads(each) for each in everyones]
