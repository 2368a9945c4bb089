"""The functions that are not about one array: parameters, given to every rank, and the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from casync.errors import InvalidArgumentError
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .engine import settle
from .loading import mx
from .ops import broadcast_

__all__ = ["broadcast_parameters", "shutdown"]


def shutdown() -> None:
    """Wait for what MXNet's engine was given, and close the default session. `init()` may be called again afterwards.
    Raises, when that is done, what ended an operation whose result nobody has read.
    """
    try:
        settle()
    finally:
        default.shutdown()


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, *, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank of the set the values that `root_rank` has, in place.

    A parameter whose shape is not known yet is given when the first forward pass has initialised it, on all ranks.
    Waits for the others.

    Args:
        params: `net.collect_params()`, or a dict of arrays or parameters by name (`Module.get_params()` has two), alike
            on all ranks.
        root_rank: its number in the world, also where a process set is given.
        prefix: stands before the names.
        process_set: the ranks that take part; all by default.
    """
    if not isinstance(params, dict | mx.gluon.ParameterDict):
        raise InvalidArgumentError(f"invalid params of type: {type(params)}")
    default.session_of(process_set)
    given: list[Any] = []
    try:
        for name, param in sorted(params.items()):
            full = f"{prefix or ''}{name}"
            try:
                array = param.data() if isinstance(param, mx.gluon.Parameter) else param
            except mx.gluon.DeferredInitializationError:
                _broadcast_later(param, root_rank, full, process_set)
            else:
                given.append(broadcast_(array, root_rank, full, process_set=process_set))
    finally:
        _wait_for(given)


def _wait_for(arrays: Iterable[Any]) -> None:
    """Wait until all have their values, or have failed. Then raise the first failure."""
    failure: Exception | None = None
    for array in arrays:
        try:
            array.wait_to_read()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _broadcast_later(param: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Broadcast once gluon, in the first forward pass, has given the parameter its values."""
    initialize = param._init_impl

    def initialized(*args: Any, **kwargs: Any) -> None:
        initialize(*args, **kwargs)
        param._init_impl = initialize
        broadcast_(param.data(), root_rank, name, process_set=process_set)

    param._init_impl = initialized
