"""Errors that are TensorFlow's too: programs catch `tf.errors.FailedPreconditionError` where ranks disagree.

An operation that runs eagerly, or is refused while a graph is made, raises a class of `casync.errors` that is also the
one of `tf.errors` which the same failure has in a graph. What fails while a graph runs is TensorFlow's error alone,
with the same text in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from casync.errors import (
    AbortedError,
    CasyncError,
    CorruptPayloadError,
    InvalidArgumentError,
    MismatchError,
    NotAvailableError,
    PeerFailureError,
    StallError,
)

__all__ = ["public"]

F = TypeVar("F", bound=Callable[..., Any])

# As native/kernel.cc has them.
_THEIRS = {
    InvalidArgumentError: tf.errors.InvalidArgumentError,
    NotAvailableError: tf.errors.UnimplementedError,
    MismatchError: tf.errors.FailedPreconditionError,
    PeerFailureError: tf.errors.UnavailableError,
    AbortedError: tf.errors.AbortedError,
    StallError: tf.errors.DeadlineExceededError,
    CorruptPayloadError: tf.errors.DataLossError,
}


def _init(self: Any, node_def: Any, op: Any, message: str, *args: Any) -> None:
    """Take arguments as TensorFlow's errors have them: AutoGraph makes one again, with its own notes in the text."""
    CasyncError.__init__(self, message)
    self.__dict__.update(_message=message, _node_def=node_def, _op=op, _error_code=0, _experimental_payloads={})


def _reduce(error: CasyncError) -> Any:
    """Pickle it as ours alone, which needs no TensorFlow to be read."""
    ours = type(error).__bases__[0]
    facts = {key: vars(error)[key] for key in ("kind", "tensor", "op", "rank", "peer")}
    return functools.partial(ours, *error.args, **facts), ()


# `op` of ours is what kind of operation failed, and no node of a graph.
_BOTH: dict[type[CasyncError], Any] = {
    ours: type(ours.__name__, (ours, theirs), {"op": None, "__init__": _init, "__reduce__": _reduce})
    for ours, theirs in _THEIRS.items()
}


def _as_theirs(error: CasyncError) -> CasyncError:
    both = _BOTH.get(type(error))
    if both is None:
        return error
    made: CasyncError = both(None, None, str(error))
    made.__dict__.update(error.__dict__)
    made.__traceback__ = error.__traceback__
    return made


def public(function: F) -> F:
    """`function`, which AutoGraph leaves as it is, and whose errors are TensorFlow's too."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except CasyncError as error:
            raise _as_theirs(error) from error.__cause__

    converted: F = tf.autograph.experimental.do_not_convert(call)
    return converted
