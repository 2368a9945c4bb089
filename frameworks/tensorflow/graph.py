"""Collective operations in a graph: what they will do when it runs, for tensors that have no values yet.

When a graph is made, all that ranks must agree on but the shape is decided: name, codec, reduction. So all ranks must
make graphs with the same operations; they need not run these in one order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from casync._constants import OP_KINDS
from casync.codecs.specs import CompressionLike
from casync.collectives.allreduce import codec_of
from casync.collectives.reducescatter import check_op
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.observe.call_site import call_site
from casync.plan.topology import topology_of
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import about
from casync.tensors.signature import OpKind, Sum, codec_for_dtype, no_rows
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from .library import operations
from .tensors import TENSORS, scaled, shape_of

__all__ = ["Graph", "unnamed", "unused"]

Scales = tuple[float, float]

_JIT = (
    "XLA cannot compile {}, which talks to other ranks: use tf.function(jit_compile=False), and with Keras "
    "model.compile(jit_compile=False)"
)


class Graph:
    """See `casync.collectives.autograd.Blocking`: here nothing blocks, all are made at once."""

    def allreduce(
        self, tensor: Any, name: str | None, op: int, scales: Scales, process_set: ProcessSet,
        compression: CompressionLike, topology: str | None, terms: Any = None,
    ) -> Any:  # fmt: skip
        """`terms`: a float32 vector of learning rate, momentum, whether it is Nesterov's, and the loss scale, for
        codecs that ask for them.
        """
        _check_reducible(tensor, name)
        output = self._run(
            OpKind.ALLREDUCE, _scaled(tensor, scales[0]), name, process_set, tensor.shape, compression=compression,
            topology=topology, reduce_op=op, scales=scales, terms=tf.zeros([0]) if terms is None else terms,
        )  # fmt: skip
        return _scaled(output, scales[1])

    def allgather(self, tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
        return self._run(OpKind.ALLGATHER, tensor, name, process_set, _any_rows(tensor, OpKind.ALLGATHER))

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        session_of(process_set)
        root = process_set.root(root_rank)
        return self._run(OpKind.BROADCAST, tensor, name, process_set, tensor.shape, root=root)

    def alltoall(self, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Any, Any]:
        given = tf.zeros([0], tf.int64) if splits is None else tf.cast(_checked_splits(splits, name), tf.int64)
        output, received = self._run(
            OpKind.ALLTOALL, tensor, name, process_set, _any_rows(tensor, OpKind.ALLTOALL), splits=given
        )
        received.set_shape([session_of(process_set).size])
        return output, tf.cast(received, tf.int32)

    def reducescatter(
        self,
        tensor: Any,
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> Any:
        check_op(op)
        _check_reducible(tensor, name)
        output = self._run(
            OpKind.REDUCESCATTER, _scaled(tensor, scales[0]), name, process_set,
            _any_rows(tensor, OpKind.REDUCESCATTER), compression=compression, reduce_op=op, scales=scales,
        )  # fmt: skip
        return _scaled(output, scales[1])

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[Any]:
        shared = (op, scales, process_set, compression, None)
        return [self.allreduce(tensor, _member(name, i), *shared) for i, tensor in enumerate(tensors)]

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[Any]:
        return [self.allgather(tensor, _member(name, i), process_set) for i, tensor in enumerate(tensors)]

    def grouped_reducescatter(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[Any]:
        shared = (op, scales, process_set, compression)
        return [self.reducescatter(tensor, _member(name, i), *shared) for i, tensor in enumerate(tensors)]

    def _run(
        self,
        kind: int,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        shape: Any,
        *,
        compression: CompressionLike = None,
        topology: str | None = None,
        reduce_op: int = Sum,
        root: int = 0,
        scales: tuple[float, float] = (1.0, 1.0),
        **inputs: Any,
    ) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if GraphOrParentsInXlaContext(graph):
            raise NotAvailableError(_JIT.format(OP_KINDS[kind]))
        owner = session_of(process_set)
        full = owner.tensor_name(kind, unnamed(tensor.op.name, kind) if name is None else name)
        with about(full):
            dtype = TENSORS.dtype(tensor)
        made = getattr(operations(), f"casync_{OP_KINDS[kind]}")(
            tensor,
            **inputs,
            tensor_name=full,
            site=call_site(),
            compression=codec_for_dtype(codec_of(compression, full, shape_of(tensor)), dtype),
            topology=topology_of(owner.config.topology if topology is None else topology),
            process_set=process_set.process_set_id,
            reduce_op=reduce_op,
            root=root,
            prescale=scales[0],
            postscale=scales[1],
        )
        output = made[0] if isinstance(made, tuple) else made
        output.set_shape(shape)
        # Each depends on its inputs alone. TensorFlow would put operations that do something in the order of the
        # program, and so each after the one before.
        if (dependencies := getattr(graph, "experimental_acd_manager", None)) is not None:
            dependencies.run_independently(output.op)
        return made


def unnamed(base: str, kind: int) -> str:
    """A name for an operation of the graph that is being made. It is the same on all ranks that make this graph, and is
    there once in it, whatever scope of names is open.
    """
    graph = tf.compat.v1.get_default_graph()
    function = re.sub(r"(_\d+)+$", "", getattr(graph, "name", "graph"))
    with graph.name_scope(None):
        return f"noname.{function}.{graph.unique_name(f'{OP_KINDS[kind]}.{base}')}"


def unused(names: Sequence[str], process_set: ProcessSet) -> list[str]:
    """The names of gradients in their order. One that the graph that is being made has already gets a number: two
    operations of one name would meet in any order. So ranks that make the same graph call them the same, each time.
    """
    owner = session_of(process_set)
    taken = set(_names_there(process_set.process_set_id))
    result = []
    for name in names:
        for number in itertools.count():
            one = f"{name}.{number}" if number else name
            own = {owner.tensor_name(OpKind.ALLREDUCE, one), owner.tensor_name(OpKind.ALLGATHER, f"{one}.values")}
            if taken.isdisjoint(own):
                break
        taken |= own
        result.append(one)
    return result


def _names_there(process_set: int | None) -> Iterator[str]:
    """Yield the names of the operations of a set: in the graph being made, those around it, and what all these call."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        called = (node for function in graph._functions.values() for node in function.cached_definition.node_def)
        for node in itertools.chain((op.node_def for op in graph.get_operations() if _is_ours(op.type)), called):
            if _is_ours(node.op) and node.attr["process_set"].i == process_set:
                yield node.attr["tensor_name"].s.decode()
        graph = getattr(graph, "outer_graph", None)


def _is_ours(operation: str) -> bool:
    return operation in ("CasyncAllreduce", "CasyncAllgather")


def _check_reducible(tensor: Any, name: str | None) -> None:
    with about(name):
        if tensor.dtype == tf.bool:
            raise InvalidArgumentError("bool cannot be reduced: use uint8, or allgather")


def _member(name: str | None, index: int) -> str | None:
    return None if name is None else f"{name}.{index}"


def _scaled(tensor: Any, factor: float) -> Any:
    return tensor if factor == 1.0 else scaled(tensor, factor)


def _any_rows(tensor: Any, kind: int) -> Any:
    if tensor.shape.rank == 0:
        raise no_rows(kind)
    return tf.TensorShape(None) if tensor.shape.rank is None else tf.TensorShape([None, *tensor.shape[1:]])


def _checked_splits(splits: Any, name: str | None) -> Any:
    about = "" if name is None else f" (tensor alltoall.{name})"
    given = tf.convert_to_tensor(splits)
    if given.shape.rank != 1:
        raise InvalidArgumentError(
            f"alltoall expects a 1D splits tensor, and this one has {given.shape.rank} dimensions{about}"
        )
    if given.dtype != tf.int32:
        raise InvalidArgumentError(
            f"alltoall expects splits to contain 32-bit integer elements, and these are {given.dtype.name}{about}"
        )
    return given
