"""Variables given to every rank, objects, and ranks as parts of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from casync.collectives import objects
from casync.collectives.waiting import synchronize_each
from casync.errors import NotAvailableError
from casync.session import default
from casync.session import world_info as basics
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .errors import public
from .gradients import names_of
from .ops import broadcast, broadcast_async

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


@public
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Give the variables of every rank of the set the values that `root_rank` has, its number in the world. They are
    the same on all ranks, in one order. `inplace` is accepted and not needed.

    Eagerly it blocks. In a graph it returns what does it when it runs; in a `tf.function` that runs by itself.
    """
    named = zip(names_of(variables), variables, strict=True)
    values = [(name, variable, tf.convert_to_tensor(variable)) for name, variable in named]
    if not tf.executing_eagerly():
        given = [
            (variable, broadcast(value, root_rank, name, process_set=process_set)) for name, variable, value in values
        ]
        return tf.group(*[variable.assign(value) for variable, value in given])
    results = synchronize_each(broadcast_async(value, root_rank, name, process_set) for name, _, value in values)
    for variable, result in zip(variables, results, strict=True):
        variable.assign(result)
    return None


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`broadcast_variables`, which returns the variables. `name` is accepted and not needed: they have names."""
    broadcast_variables(variables, root_rank, process_set)
    return list(variables)


def broadcast_global_variables(root_rank: int) -> Any:
    """Make, in a graph of TensorFlow 1, what gives all its global variables the values of `root_rank`."""
    if tf.executing_eagerly():
        raise NotAvailableError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook for sessions of TensorFlow 1. All global variables get the values of `root_rank` when the session is made.
    `device` is accepted and not needed.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._broadcast: Any = None

    def begin(self) -> None:
        self._broadcast = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._broadcast)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do as `casync.torch.broadcast_object`. `session` is accepted and not needed."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function that broadcasts its argument so."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Do as `casync.torch.allgather_object`. `session` is accepted and not needed."""
    return objects.allgather_object(obj, name, process_set=process_set)


# --- what a graph asks when it runs -----------------------------------------------------------------------------------


def _asked(ask: Callable[[], int], name: str | None) -> Any:
    """A number of int32, asked for each time: the world may be another one when the graph runs."""
    number = tf.numpy_function(lambda: tf.constant(ask(), tf.int32).numpy(), [], tf.int32, name=name)
    number.set_shape([])
    return number


def rank_op(name: str | None = None) -> Any:
    """This process's rank, asked when the graph runs: an int32."""
    return _asked(basics.rank, name)


def local_rank_op(name: str | None = None) -> Any:
    """This process's rank among those of its host, asked when the graph runs."""
    return _asked(basics.local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this process's host, asked when the graph runs."""
    return _asked(basics.local_size, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks in the process set, asked when the graph runs."""
    return _asked(lambda: len(default.process_sets().ids_and_ranks()[process_set_id]), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the set, else 0."""
    return _asked(lambda: int(basics.rank() in default.process_sets().ids_and_ranks()[process_set_id]), name)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether it is one. Adasum here takes any number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
