"""Local SGD and DiLoCo where the program says itself when a step ends: NumPy, TensorFlow, MXNet and Keras.

An adaptor derives classes of its own, which say what it takes for parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from casync.codecs.compression import Compression
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError
from casync.relaxed.fragment import Fragment
from casync.relaxed.outer import Averaging, Nesterov, Outer
from casync.relaxed.rounds import Rounds
from casync.relaxed.schedule import Schedule
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import Tensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["DiLoCo", "LocalSGD", "LocalSteps"]

P = TypeVar("P")
"""What an adaptor takes for the parameters of one model, or of one fragment."""
S = TypeVar("S", bound="LocalSteps[Any]")


class LocalSteps(ABC, Generic[P]):
    """The part that LocalSGD and DiLoCo share. One thread calls the methods."""

    tensors: Tensors[Array]
    """The adaptor for NumPy arrays, in which is computed. It is the deriving class's to say."""
    rounds: Rounds[Array]
    """The rounds; `rounds.metrics` has their numbers, as `hvd.metrics().rounds` has."""

    @staticmethod
    @abstractmethod
    def fragment_of(parameters: P, *, buffers: bool) -> Fragment[Array]:
        """The parameters of a fragment, and the buffers that go with them, as NumPy arrays."""

    @staticmethod
    def parts_of(fragments: P | list[P]) -> list[P]:
        """The fragments in what a user gives DiLoCo."""
        return fragments if isinstance(fragments, list) else [fragments]

    def _start(
        self,
        fragments: Sequence[P],
        outer: Outer[Array],
        sync_every: int,
        delay: int,
        settings: Settings,
        alpha: float | None,
        buffers: str,
        weight: Callable[[], float] | None,
    ) -> None:
        if buffers not in ("average", "local"):
            raise InvalidArgumentError(f"buffers={buffers!r}: it must be 'average' or 'local'")
        every = [self.fragment_of(each, buffers=buffers == "average") for each in fragments]
        made = [fragment for fragment in every if fragment.parameters]
        if not made:
            raise InvalidArgumentError("there are no parameters to average: a model must have been built before")
        for empty in (fragment for fragment in every if not fragment.parameters):
            made[0].buffers = [*made[0].buffers, *empty.buffers]
            made[0].fixed = [*made[0].fixed, *empty.fixed]
        schedule = Schedule(sync_every, len(made), delay)
        kind = type(self).__name__.lower()
        self.rounds = Rounds(self.tensors, made, outer, schedule, settings, alpha=alpha, weight=weight, kind=kind)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()

    def step(self) -> None:
        """This rank has made one more step of its own. Blocks where a round is due."""
        self.rounds.step()

    def sync(self) -> None:
        """One round of everything, now. Collective: all ranks call it after the same step. Blocks."""
        self.rounds.sync()

    def flush(self) -> None:
        """Wait for the rounds that are under way, and use their results. Other ranks need not call it."""
        self.rounds.flush()

    def finish(self) -> None:
        """The end of the training, as the end of a `with` is. Collective, and blocks; ranks may have made different
        numbers of steps, and come at different times. All leave with the same parameters.
        """
        self.rounds.finish()

    def global_parameters(self) -> AbstractContextManager[None]:
        """Within it the parameters are the global ones, equal on all ranks since the last round: for evaluation, or to
        save them. Not collective. No step may be made in it.
        """
        return self.rounds.global_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on: global parameters, this rank's own, the outer optimizer's state, and what
        codecs keep. Save one on each rank, to go on exactly. Waits for the rounds that are under way.
        """
        return self.rounds.state_dict(lambda values: values)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave. Parameters become this rank's own if the state is of this rank in a world of
        this size. Else they become the global ones, and the steps since the last round are lost.
        """
        self.rounds.load_state_dict(state_dict, lambda values: values)


class LocalSGD(LocalSteps[P]):
    """Every `sync_every` steps the parameters become the mean of the ranks' own (Stich 2019)."""

    def __init__(
        self,
        parameters: P,
        sync_every: int,
        *,
        compression: CompressionLike = Compression.none,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        process_set: ProcessSet = global_process_set,
        delay: int = 0,
        alpha: float | None = None,
        buffers: str = "average",
        weight: Callable[[], float] | None = None,
    ) -> None:
        """Collective: all ranks give the same settings. The lowest rank's parameters are given to all.

        Args:
            parameters: as the adaptor says. They are changed in place.
            sync_every: steps between two rounds.
            compression: a codec, or codecs by name, as in `allreduce`. What a parameter has changed by is encoded, with
                feedback; never the parameter itself.
            rules: codecs by name, in place of `compression`.
            min_numel: parameters of fewer elements are exact; None takes `Config.min_numel`.
            topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
            process_set: the ranks that take part.
            delay: steps that are made while a round is under way. 0: the rank waits for it.
            alpha: the part of its own parameters that a rank keeps when a round ends, 0 to 1. None: 0.5 with a delay,
                else 0.
            buffers: "average": float buffers become their mean with each round, integers the largest; "local": they
                stay as they are.
            weight: called when a round begins, for how much this rank's change counts, say its samples since the round
                before. None: all count alike.

        Raises `InvalidArgumentError` for settings that cannot be, and `MismatchError` on all ranks if theirs differ.
        """
        settings = Settings.of(
            compression=compression, rules=rules, min_numel=min_numel, topology=topology, process_set=process_set
        )
        self._start([parameters], Averaging(), sync_every, delay, settings, alpha, buffers, weight)


class DiLoCo(LocalSteps[P]):
    """Local steps, and an outer optimizer that takes the mean of what they changed for a gradient (Douillard et al.
    2023). With a delay and several fragments it is Streaming DiLoCo (2025).
    """

    def __init__(
        self,
        fragments: P | list[P],
        outer_optimizer: Outer[Array] | None = None,
        sync_every: int = 100,
        *,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float | None = None,
        compression: CompressionLike = Compression.none,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        process_set: ProcessSet = global_process_set,
        buffers: str = "average",
        weight: Callable[[], float] | None = None,
    ) -> None:
        """Collective, with arguments as `LocalSGD` has them, and these.

        Args:
            fragments: parameters, as `LocalSGD` takes them; or a list of such, each a fragment with rounds of its own.
                One in which nothing is trained goes with the others.
            outer_optimizer: None takes `casync.relaxed.outer.Nesterov(lr=0.7, momentum=0.9)`.
            sync_every: steps between two rounds of one fragment. Those of the others lie between.
            fragment_sync_delay: steps that are made while a round is under way. 0: the rank waits for it.
            fragment_update_alpha: the part of its own parameters that a rank keeps when a round ends. None: 0.5 with a
                delay, else 0.
        """
        settings = Settings.of(
            compression=compression, rules=rules, min_numel=min_numel, topology=topology, process_set=process_set
        )
        outer = Nesterov() if outer_optimizer is None else outer_optimizer
        self._start(
            self.parts_of(fragments), outer, sync_every, fragment_sync_delay, settings, fragment_update_alpha, buffers,
            weight,
        )  # fmt: skip
