"""casync.tensorflow in graphs: each blocking operation is one of a `tf.function` that is made for it.

What fails while a graph runs is TensorFlow's error. The suite expects ours, so it is translated here by its class, as
`casync.tensorflow.errors` pairs them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from casync import errors
from support.bindings import tensorflow as eager

BLOCKING = ("allgather", "allreduce", "broadcast", "reducescatter")
GROUPED = ("grouped_allgather", "grouped_allreduce", "grouped_reducescatter")


class Binding(eager.Binding):
    name = "tensorflow_graph"
    in_graph = True
    cycles = 20

    def adaptor(self) -> Any:
        import casync.tensorflow as hvd
        import tensorflow as tf

        self._functions = tf.function
        self._theirs = {
            tf.errors.InvalidArgumentError: errors.InvalidArgumentError,
            tf.errors.UnimplementedError: errors.NotAvailableError,
            tf.errors.FailedPreconditionError: errors.MismatchError,
            tf.errors.UnavailableError: errors.PeerFailureError,
            tf.errors.AbortedError: errors.AbortedError,
            tf.errors.DeadlineExceededError: errors.StallError,
        }
        made = SimpleNamespace(**{name: getattr(hvd, name) for name in dir(hvd) if not name.startswith("__")})
        for name in BLOCKING:
            setattr(made, name, self._in_graph(getattr(hvd, name)))
        for name in GROUPED:
            setattr(made, name, self._in_graph(getattr(hvd, name)))
        made.alltoall = self._alltoall(hvd.alltoall)
        return made

    def _in_graph(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run(lambda given: operation(given, *args, **kwargs), tensors)

        return run

    def _alltoall(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def run(tensor: Any, splits: Any = None, **kwargs: Any) -> Any:
            if splits is None:
                return self._run(lambda given: operation(given, **kwargs), tensor)
            return self._run(lambda given, parts: operation(given, parts, **kwargs), tensor, splits)

        return run

    def _run(self, made: Callable[..., Any], *given: Any) -> Any:
        try:
            return self._functions(made, autograph=False)(*given)
        except errors.CasyncError:
            raise
        except tuple(self._theirs) as error:
            text = re.sub(r"^\{\{.*?\}\} |\s*\[\[\{\{node.*", "", error.message, flags=re.DOTALL)
            raise self._theirs[type(error)](text) from error
