"""The gradients of one tape or optimizer, reduced as parts of a graph: each as soon as backward has made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from casync.codecs import specs as codecs
from casync.collectives.gradient_submits import GradientSubmits
from casync.collectives.numbered import numbered
from casync.collectives.settings import Settings
from casync.config.rules import Shape
from casync.session import default

from .graph import Graph, unused
from .ops import allreduce_slices
from .tensors import TENSORS, scaled, shape_of

__all__ = ["GraphGradients", "averaged", "name_of", "names_of"]


def names_of(variables: Sequence[Any]) -> list[str]:
    """Return the names under which ranks meet: a Keras variable's path, or the name of another one. Of two that have
    the same name the second is numbered, so all ranks must have them in one order.
    """
    return numbered(name_of(variable) or f"source.{index}" for index, variable in enumerate(variables))


def name_of(variable: Any) -> str:
    """Return the name of a variable; "" for a tensor that has none, as eager ones have."""
    try:
        return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")
    except AttributeError:
        return ""


class GraphGradients:
    """`reduce` may be called eagerly: then it makes a graph at the first call, and runs it at each.

    Args:
        settings: how the gradients are reduced.
        claims: whether what codecs keep of them is this object's alone; False where a new one is made at every step.
    """

    def __init__(self, settings: Settings, *, claims: bool) -> None:
        self._settings = settings
        self._submits = GradientSubmits(TENSORS, settings)
        self._claims = claims
        self._checked: set[tuple[str, ...]] = set()
        self._compiled = tf.function(self._in_graph, reduce_retracing=False, autograph=False)

    @property
    def size(self) -> int:
        """How many ranks reduce them together."""
        return self._submits.session().size

    def check_rules(self, shapes: Mapping[str, Shape]) -> None:
        """Raise `InvalidArgumentError` if a variable, given by name, has no codec, and warn of rules without effect:
        once for these names, whatever number of steps asks.
        """
        names = tuple(shapes)
        if names not in self._checked:
            codecs.check_rules(self._settings.rules, shapes, may_warn=default.session().rank == 0)
            self._checked.add(names)

    def reduce(
        self, names: Sequence[str], gradients: Sequence[Any], terms: Callable[[str], Any] | None = None
    ) -> list[Any]:
        """The reduced gradients in the order given; None where there is none, which must be so on all ranks. Names
        that are there already in the graph that is being made get numbers.

        Args:
            names: of the parameters, all different.
            gradients: tensors, `tf.IndexedSlices`, or None.
            terms: of a name, what `Graph.allreduce` takes as such, or None; for codecs that take over momentum.
        """
        told = [None if terms is None else terms(name) for name in names]
        if not tf.executing_eagerly():
            called = unused(names, self._settings.process_set)
            self._take(called)
            with tf.control_dependencies(self._checks()):
                return self._in_graph(names, called, gradients, told)
        self._take(names)
        result: list[Any] = self._compiled(tuple(names), tuple(names), list(gradients), told)
        return result

    def _take(self, names: Sequence[str]) -> None:
        if self._claims:
            self._submits.know(names)
            self._submits.check()

    def _checks(self) -> list[Any]:
        """Return operations that make each step of a graph fail once another optimizer has taken one of the names."""
        if not (self._claims and self._settings.keeps_something):
            return []
        return [tf.numpy_function(self._submits.check, [], [])]

    def _in_graph(
        self, names: Sequence[str], called: Sequence[str], gradients: Sequence[Any], terms: Sequence[Any]
    ) -> list[Any]:
        """Reduce in a graph. Groups and rules use the `names`; ranks meet under those that gradients are `called`."""
        settings = self._settings
        grouped = self._groups(names, gradients)
        scales = (1.0 / settings.predivide, settings.predivide)
        reduced: list[Any] = []
        for name, own, gradient, told in zip(names, called, grouped, terms, strict=True):
            if isinstance(gradient, tf.IndexedSlices) and settings.sparse_as_dense:
                gradient = tf.convert_to_tensor(gradient)
            if gradient is None:
                reduced.append(None)
                continue
            codec = codecs.codec_by_name(settings.rules, name, shape_of(gradient))
            if isinstance(gradient, tf.IndexedSlices):
                reduced.append(allreduce_slices(gradient, own, settings.op, settings.process_set, codec))
            else:
                reduced.append(
                    Graph().allreduce(
                        gradient, own, settings.op, scales, settings.process_set, codec, settings.topology, told
                    )
                )
        return reduced

    def _groups(self, names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients so that those of one group are submitted when the last of them is there."""
        wanted = self._settings.groups
        if isinstance(wanted, int):
            ends = [len(names) * (i + 1) // wanted for i in range(wanted)] if wanted else []
            members = [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)]
        else:
            places = {name: index for index, name in enumerate(names)}
            members = [[places[name] for name in group if name in places] for group in wanted]
        result = list(gradients)
        for group in members:
            there = [i for i in group if isinstance(gradients[i], tf.Tensor)]
            with tf.control_dependencies([gradients[i] for i in there]):
                for i in there:
                    result[i] = tf.identity(gradients[i])
        return result


def averaged(gradient: Any, number: int) -> Any:
    """A gradient that only this rank has, as part of a mean over so many."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, 1 / number), gradient.indices, gradient.dense_shape)
    return None if gradient is None else scaled(gradient, 1 / number)
