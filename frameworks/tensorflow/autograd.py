"""Gradients of the operations, eager and in graphs. Running them is collective: all ranks do, if eager in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from casync.collectives.interface import Collectives
from casync.collectives.reducescatter import gradient_factor
from casync.collectives.waiting import synchronize
from casync.default import session_of
from casync.errors import NotAvailableError
from casync.terms import Average, Sum

from .graph import Graph
from .tensors import TENSORS, scaled

__all__ = ["Autograd", "values"]

Scales = tuple[float, float]

_EAGER: Collectives[Any] = Collectives(TENSORS)
_GRAPH: Collectives[Any] = Collectives(TENSORS, graph=Graph())


def values() -> Collectives[Any]:
    """The operations without gradients: of tensors that are there, or of a graph that is being made."""
    return _EAGER if tf.executing_eagerly() else _GRAPH


def _with_gradient(run: Callable[..., tuple[Any, Callable[..., Any]]], *tensors: Any) -> Any:
    """`run(*tensors)`, which returns results, and what makes gradients of the tensors from gradients of these."""
    return tf.custom_gradient(run)(*tensors)


def _checked(op: int) -> int:
    if op not in (Average, Sum):
        raise NotAvailableError(
            "allreduce is differentiable for Sum and Average; give it tf.stop_gradient(tensor) for the others"
        )
    return op


class Autograd:
    """See `casync.collectives.autograd`; of the gradients Horovod's rules hold, as docs/internals/new_adaptor.md has
    them.
    """

    def wants(self, tensor: Any) -> bool:
        return isinstance(tensor, tf.Tensor | tf.Variable) and bool(tensor.dtype.is_floating)

    def allreduce(
        self, tensor: Any, name: str | None, op: int, scales: Scales, process_set: Any, compression: Any,
        topology: str | None,
    ) -> Any:  # fmt: skip
        def run(given: Any) -> Any:
            def back(gradient: Any) -> Any:
                return values().allreduce(gradient, None, None, None, _checked(op), *scales, process_set)

            return values().allreduce(given, None, name, compression, op, *scales, process_set, topology=topology), back

        return _with_gradient(run, tensor)

    def allgather(self, tensor: Any, name: str | None, process_set: Any) -> Any:
        def run(given: Any) -> Any:
            def back(gradient: Any) -> Any:
                rows = values().allgather(tf.shape(given, tf.int64)[:1], None, process_set)
                return _own_rows(values().allreduce(gradient, op=Average, process_set=process_set), rows, process_set)

            return values().allgather(given, name, process_set), back

        return _with_gradient(run, tensor)

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: Any) -> Any:
        def run(given: Any) -> Any:
            def back(gradient: Any) -> Any:
                mean = values().allreduce(gradient, op=Average, process_set=process_set)
                return mean if session_of(process_set).rank == process_set.root(root_rank) else tf.zeros_like(mean)

            return values().broadcast(given, root_rank, name, process_set), back

        return _with_gradient(run, tensor)

    def alltoall(self, tensor: Any, splits: Any, name: str | None, process_set: Any) -> Any:
        def run(given: Any) -> Any:
            output, received = _alltoall(given, splits, name, process_set)

            def back(gradient: Any, _received: Any = None) -> Any:
                mine, _ = _alltoall(gradient, received, None, process_set)
                lost = tf.shape(given)[0] - tf.shape(mine)[0]
                return tf.pad(mine, [[0, lost], *[[0, 0]] * (len(given.shape) - 1)])

            return (output, received), back

        return _with_gradient(run, tensor)

    def reducescatter(
        self, tensor: Any, name: str | None, op: int, scales: Scales, process_set: Any, compression: Any
    ) -> Any:
        def run(given: Any) -> Any:
            def back(gradient: Any) -> Any:
                factor = gradient_factor(op, scales, process_set)
                return values().allgather(scaled(gradient, factor), None, process_set)

            return values().reducescatter(given, name, compression, op, process_set, *scales), back

        return _with_gradient(run, tensor)

    def grouped_allreduce(
        self, tensors: Sequence[Any], name: str | None, op: int, scales: Scales, process_set: Any, compression: Any
    ) -> list[Any]:
        def run(*given: Any) -> Any:
            def back(*gradients: Any) -> Any:
                return values().grouped_allreduce(gradients, None, None, None, _checked(op), *scales, process_set)

            return values().grouped_allreduce(given, None, name, compression, op, *scales, process_set), back

        return _with_gradients(run, tensors)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None, process_set: Any) -> list[Any]:
        def run(*given: Any) -> Any:
            def back(*gradients: Any) -> Any:
                kept = [tf.shape(one, tf.int64)[0] for one in given if one.dtype.is_floating]
                rows = values().allgather(tf.stack([kept]), None, process_set)
                means = values().grouped_allreduce(gradients, op=Average, process_set=process_set)
                return [_own_rows(mean, rows[:, i], process_set) for i, mean in enumerate(means)]

            return values().grouped_allgather(given, name, process_set), back

        return _with_gradients(run, tensors)

    def grouped_reducescatter(
        self, tensors: Sequence[Any], name: str | None, op: int, scales: Scales, process_set: Any, compression: Any
    ) -> list[Any]:
        def run(*given: Any) -> Any:
            def back(*gradients: Any) -> Any:
                factor = gradient_factor(op, scales, process_set)
                return values().grouped_allgather([scaled(one, factor) for one in gradients], None, process_set)

            return values().grouped_reducescatter(given, name, compression, op, process_set, *scales), back

        return _with_gradients(run, tensors)


def _with_gradients(run: Callable[..., tuple[Any, Callable[..., Any]]], tensors: Sequence[Any]) -> list[Any]:
    """As `_with_gradient`, of several tensors; those that are not of floats have no gradients."""
    floating = [tensor.dtype.is_floating for tensor in tensors]

    def run_all(*given: Any) -> Any:
        results, back = run(*given)

        def back_all(*gradients: Any) -> Any:
            mine = iter(back(*(one for one, has in zip(gradients, floating, strict=True) if has)))
            return [next(mine) if has else None for has in floating]

        return results, back_all

    return list(_with_gradient(run_all, *tensors))


def _own_rows(tensor: Any, rows: Any, process_set: Any) -> Any:
    """Those of this rank, of which each has as many as `rows` says."""
    rank = session_of(process_set).rank
    begin = tf.reduce_sum(rows[:rank])
    return tensor[begin : begin + rows[rank]]


def _alltoall(tensor: Any, splits: Any, name: str | None, process_set: Any) -> tuple[Any, Any]:
    """The received splits too, also if none were given."""
    if not tf.executing_eagerly():
        return Graph().alltoall(tensor, splits, name, process_set)
    output, received = synchronize(_EAGER.alltoall_async(tensor, splits, name, process_set))
    return output, received
