"""Gradients of the operations, eager and in graphs. Running them is collective: all ranks do, if eager in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from casync.codecs.specs import CompressionLike
from casync.collectives.interface import Collectives
from casync.collectives.reducescatter import gradient_factor
from casync.collectives.waiting import synchronize
from casync.errors import NotAvailableError
from casync.session.default import process_sets, session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average, OpKind, Sum

from .graph import Graph, unnamed
from .tensors import TENSORS, scaled

__all__ = ["Autograd", "values"]

Scales = tuple[float, float]
_UNSCALED: Scales = (1.0, 1.0)

_EAGER: Collectives[Any] = Collectives(TENSORS)
_GRAPH: Collectives[Any] = Collectives(TENSORS, graph=Graph())


def values() -> Collectives[Any]:
    """The operations without gradients: of tensors that are there, or of a graph that is being made."""
    return _EAGER if tf.executing_eagerly() else _GRAPH


def _with_gradient(run: Callable[..., tuple[Any, Callable[..., Any]]], *tensors: Any) -> Any:
    """`run(*tensors)`, which returns results, and what makes gradients of the tensors from gradients of these.

    A rank that computes such a gradient has run the operation, also where the gradient does not need the result. That
    of another rank may need it, and would wait.
    """

    def run_first(*given: Any) -> Any:
        results, back = run(*given)

        def back_after(*gradients: Any) -> Any:
            with tf.control_dependencies(tf.nest.flatten(results)):
                return back(*map(_dense, gradients))

        return results, back_after

    return tf.custom_gradient(run_first)(*tensors)


def _names(kind: int, name: str | None, tensor: Any, process_set: ProcessSet) -> tuple[str | None, str]:
    """The name of an operation, and what those that make its gradient are named after. That is the operation and not
    what comes in, nor the order in which gradients are made: ranks that do other things with the result differ in both.
    """
    if name is not None:
        return name, name
    if tf.executing_eagerly():
        numbered = session_of(process_set).tensor_name(kind, None)
        return numbered, numbered
    return None, tensor.op.name


def _of_gradient(base: str, kind: int) -> str:
    """The name of an operation that makes a gradient."""
    return f"{base}.gradient" if tf.executing_eagerly() else unnamed(f"{base}.gradient", kind)


def _checked(op: int) -> int:
    if op not in (Average, Sum):
        raise NotAvailableError(
            "allreduce is differentiable for Sum and Average; give it tf.stop_gradient(tensor) for the others"
        )
    return op


class Autograd:
    """See `casync.collectives.autograd`. Horovod's rules for gradients hold, as docs/internals/new_adaptor.md has them.
    Each gradient is made of operations that have gradients themselves, and each rank's needs the results of all of
    these: what a result does not need is left out of a graph of TensorFlow 1, and the other ranks would wait.
    """

    def wants(self, tensor: Any) -> bool:
        return isinstance(tensor, tf.Tensor | tf.Variable) and bool(tensor.dtype.is_floating)

    def allreduce(
        self, tensor: Any, name: str | None, op: int, scales: Scales, process_set: ProcessSet,
        compression: CompressionLike, topology: str | None,
    ) -> Any:  # fmt: skip
        def run(given: Any) -> Any:
            called, base = _names(OpKind.ALLREDUCE, name, given, process_set)

            def back(gradient: Any) -> Any:
                return self.allreduce(
                    gradient, _of_gradient(base, OpKind.ALLREDUCE), _checked(op), scales, process_set, None, None
                )

            return values().allreduce(
                given, None, called, compression, op, *scales, process_set, topology=topology
            ), back

        return _with_gradient(run, tensor)

    def allgather(self, tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
        def run(given: Any) -> Any:
            called, base = _names(OpKind.ALLGATHER, name, given, process_set)

            def back(gradient: Any) -> Any:
                rows = values().allgather(
                    tf.shape(given, tf.int64)[:1], _of_gradient(base, OpKind.ALLGATHER), process_set
                )
                return _own_rows(self._mean(gradient, base, process_set), rows, process_set)

            return values().allgather(given, called, process_set), back

        return _with_gradient(run, tensor)

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        def run(given: Any) -> Any:
            called, base = _names(OpKind.BROADCAST, name, given, process_set)

            def back(gradient: Any) -> Any:
                mean = self._mean(gradient, base, process_set)
                is_root = session_of(process_set).rank == process_set.root(root_rank)
                return tf.where(is_root, mean, tf.zeros_like(mean))

            return values().broadcast(given, root_rank, called, process_set), back

        return _with_gradient(run, tensor)

    def alltoall(self, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        def run(given: Any) -> Any:
            called, base = _names(OpKind.ALLTOALL, name, given, process_set)
            output, received = _alltoall(given, splits, called, process_set)

            def back(gradient: Any, _received: Any = None) -> Any:
                mine, _ = self.alltoall(gradient, received, _of_gradient(base, OpKind.ALLTOALL), process_set)
                lost = tf.shape(given)[0] - tf.shape(mine)[0]
                return tf.pad(mine, tf.scatter_nd([[0, 1]], [lost], [tf.rank(given), 2]))

            return (output, received), back

        return _with_gradient(run, tensor)

    def reducescatter(
        self,
        tensor: Any,
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> Any:
        def run(given: Any) -> Any:
            called, base = _names(OpKind.REDUCESCATTER, name, given, process_set)

            def back(gradient: Any) -> Any:
                factor = gradient_factor(op, scales, process_set)
                return self.allgather(scaled(gradient, factor), _of_gradient(base, OpKind.ALLGATHER), process_set)

            return values().reducescatter(given, called, compression, op, process_set, *scales), back

        return _with_gradient(run, tensor)

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[Any]:
        def run(*given: Any) -> Any:
            called, base = _names(OpKind.ALLREDUCE, name, given[0], process_set)

            def back(*gradients: Any) -> Any:
                mine = _of_gradient(base, OpKind.ALLREDUCE)
                return self.grouped_allreduce(gradients, mine, _checked(op), scales, process_set, None)

            return values().grouped_allreduce(given, None, called, compression, op, *scales, process_set), back

        return _with_gradients(run, tensors)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[Any]:
        def run(*given: Any) -> Any:
            called, base = _names(OpKind.ALLGATHER, name, given[0], process_set)

            def back(*gradients: Any) -> Any:
                kept = [tf.shape(one, tf.int64)[0] for one in given if one.dtype.is_floating]
                rows = values().allgather(tf.stack([kept]), _of_gradient(base, OpKind.ALLGATHER), process_set)
                mine = _of_gradient(base, OpKind.ALLREDUCE)
                means = self.grouped_allreduce(gradients, mine, Average, _UNSCALED, process_set, None)
                return [_own_rows(mean, rows[:, i], process_set) for i, mean in enumerate(means)]

            return values().grouped_allgather(given, called, process_set), back

        return _with_gradients(run, tensors)

    def grouped_reducescatter(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[Any]:
        def run(*given: Any) -> Any:
            called, base = _names(OpKind.REDUCESCATTER, name, given[0], process_set)

            def back(*gradients: Any) -> Any:
                factor = gradient_factor(op, scales, process_set)
                mine = _of_gradient(base, OpKind.ALLGATHER)
                return self.grouped_allgather([scaled(one, factor) for one in gradients], mine, process_set)

            return values().grouped_reducescatter(given, called, compression, op, process_set, *scales), back

        return _with_gradients(run, tensors)

    def _mean(self, gradient: Any, base: str, process_set: ProcessSet) -> Any:
        return self.allreduce(
            gradient, _of_gradient(base, OpKind.ALLREDUCE), Average, _UNSCALED, process_set, None, None
        )


def _dense(gradient: Any) -> Any:
    """Return the incoming gradient as a dense one. It is `tf.IndexedSlices` where the result went into `tf.gather`."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


@tf.RegisterGradient("CasyncAllreduce")  # type: ignore[untyped-decorator]
def _of_reduced(operation: Any, gradient: Any, *_: Any) -> tuple[Any, None]:
    """Return the gradient of the operation as it stands. What tapes and optimizers reduce has no other, for second
    derivatives.
    """
    base = operation.get_attr("tensor_name").decode().removeprefix("allreduce.")
    process_set = process_sets().of_number(operation.get_attr("process_set"))
    name, op = _of_gradient(base, OpKind.ALLREDUCE), _checked(operation.get_attr("reduce_op"))
    with tf.control_dependencies(operation.outputs):
        return Graph().allreduce(_dense(gradient), name, op, _UNSCALED, process_set, None, None), None


def _with_gradients(run: Callable[..., tuple[Any, Callable[..., Any]]], tensors: Sequence[Any]) -> list[Any]:
    """Do as `_with_gradient`, for several tensors. Those that are not of floats have no gradients."""
    floating = [tensor.dtype.is_floating for tensor in tensors]

    def run_all(*given: Any) -> Any:
        results, back = run(*given)

        def back_all(*gradients: Any) -> Any:
            mine = iter(back(*(one for one, has in zip(gradients, floating, strict=True) if has)))
            return [next(mine) if has else None for has in floating]

        return results, back_all

    return list(_with_gradient(run_all, *tensors))


def _own_rows(tensor: Any, rows: Any, process_set: ProcessSet) -> Any:
    """Return the rows of this rank. Each rank has as many as `rows` says."""
    rank = session_of(process_set).rank
    begin = tf.reduce_sum(rows[:rank])
    return tensor[begin : begin + rows[rank]]


def _alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Any, Any]:
    """Return the output and the received splits, also if no splits were given."""
    if not tf.executing_eagerly():
        return Graph().alltoall(tensor, splits, name, process_set)
    output, received = synchronize(_EAGER.alltoall_async(tensor, splits, name, process_set))
    return output, received
