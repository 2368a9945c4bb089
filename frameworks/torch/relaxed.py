"""Local SGD and DiLoCo: ranks train alone for some steps, and then average what these have changed.

    with hvd.DiLoCo(model, optimizer, sync_every=100, compression="onebit"):
        for batch in data:
            ...
            optimizer.step()

Arguments have torchft's names. A hook of the optimizer counts its steps, and runs the rounds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from casync.codecs.compression import Compression
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError
from casync.relaxed.fragment import Fragment
from casync.relaxed.outer import Averaging, Outer
from casync.relaxed.rounds import Rounds
from casync.relaxed.schedule import Schedule
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Adasum
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable it imports the compiler when it is called
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from .functions import broadcast_optimizer_state
from .relaxed_parts import (
    Held,
    OuterOptimizer,
    balanced,
    buffers_of,
    check_module,
    fixed_of,
    is_sharded,
    named_of,
    parameters_of,
    reshard,
    restored,
)
from .tensors import TENSORS
from .wrapped_optimizer import _DistributedOptimizer

__all__ = ["DiLoCo", "LocalSGD"]

_LOG = logging.getLogger("casync")
_S = TypeVar("_S", bound="LocalSGD")
_Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class LocalSGD:
    """Every `sync_every` steps the parameters become the mean of the ranks' own (Stich 2019).

    It begins with the parameters and buffers of the lowest rank, on all ranks. Use it as a context: the optimizer's
    steps are counted within it, and after it all ranks have the same parameters. A step that a GradScaler skips does
    not count. Within it DistributedDataParallel averages no gradients, nor does DistributedOptimizer after the warm-up;
    after it they do again, and all ranks begin with the lowest one's state of the optimizer.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: _Optimizers,
        sync_every: int,
        *,
        compression: CompressionLike = Compression.none,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        process_set: ProcessSet = global_process_set,
        delay: int = 0,
        alpha: float | None = None,
        warmup_steps: int = 0,
        buffers: str = "average",
        weight: Callable[[], float] | None = None,
    ) -> None:
        """Collective: all ranks give the same settings and a model of the same parameters.

        Args:
            model: its parameters that require a gradient are averaged; frozen ones begin alike.
            optimizer: of these parameters; or a list of optimizers, of which the last one to step ends a step.
            sync_every: steps between two rounds.
            compression: a codec, or codecs by name, as in `DistributedOptimizer`. What a parameter has changed by is
                encoded, with feedback; never the parameter itself.
            rules: codecs by name, in place of `compression`.
            min_numel: parameters of fewer elements are exact; None takes `Config.min_numel`.
            topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
            process_set: the ranks that take part.
            delay: steps that are made while a round is under way. 0: the rank waits for it.
            alpha: the part of its own parameters that a rank keeps when a round ends, 0 to 1. None: 0.5 with a delay,
                else 0.
            warmup_steps: steps before the first one that counts, in which gradients are averaged, by a model in
                DistributedDataParallel or an optimizer of `hvd.DistributedOptimizer`.
            buffers: "average": float buffers become their mean with each round, integers the largest, and masks begin
                alike; "local": all stay as they are.
            weight: called when a round begins, for how much this rank's change counts, say its samples since the round
                before. None: all count alike.

        Raises `InvalidArgumentError` for settings that cannot be, and `MismatchError` on all ranks if theirs differ.
        """
        self._start(
            [("", model)], optimizer, lambda held: Averaging(), Schedule(sync_every, 1, delay, warmup_steps),
            Settings.of(
                compression=compression, rules=rules, min_numel=min_numel, topology=topology, process_set=process_set
            ),
            alpha, buffers, weight,
        )  # fmt: skip

    def _start(
        self,
        modules: Sequence[tuple[str, torch.nn.Module]],
        optimizer: _Optimizers,
        outer: Callable[[Sequence[Held]], Outer[torch.Tensor]],
        schedule: Schedule,
        settings: Settings,
        alpha: float | None,
        buffers: str,
        weight: Callable[[], float] | None,
    ) -> None:
        if buffers not in ("average", "local"):
            raise InvalidArgumentError(f"buffers={buffers!r}: it must be 'average' or 'local'")
        self._optimizers = _listed(optimizer)
        if not self._optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in self._optimizers):
            raise InvalidArgumentError(
                f"optimizer={optimizer!r}: it must be a torch.optim.Optimizer, or a list of them"
            )
        for _, module in modules:
            check_module(module)
        self._ddps = _ddps_of(modules)
        self._modules = [(prefix, _inner(module)) for prefix, module in modules]
        parts = _fragments_of(modules, schedule.fragments)
        self._held = [held for part in parts for held in part]
        self._parameters = {name: value for each in self._modules for name, value in named_of(*each).items()}
        self._trained = {name for name, value in self._parameters.items() if value.requires_grad}
        every = [held for each in self._modules for held in buffers_of(*each)] if buffers == "average" else []
        self._buffers = [held for held in every if held.tensor.dtype is not torch.bool]
        self._check_optimizers()
        self._averaging = self._averaging_each_step(settings, schedule.warmup_steps)
        fragments = [Fragment(part) for part in parts]
        fragments[-1].buffers = self._buffers
        fragments[-1].fixed = fixed_of(self._parameters, every)
        self.rounds: Rounds[torch.Tensor] = Rounds(
            TENSORS, fragments, outer(self._held), schedule, settings, alpha=alpha, weight=weight,
            check=self._check_unchanged, kind=type(self).__name__.lower(),
        )  # fmt: skip
        """The rounds so far, in numbers."""
        self._process_set = settings.process_set
        self._hook: RemovableHandle | None = None
        self._outside = self._optimizers[-1].register_step_pre_hook(self._refuse)
        self._local: contextlib.ExitStack | None = None
        """While gradients are this rank's own: what makes them averaged again."""

    @property
    def _root(self) -> int:
        return session_of(self._process_set).peers[0]

    def _check_unchanged(self) -> None:
        """Raise if something else is trained now than at the beginning."""
        remedy = f"End the `with` before that, and make a new {type(self).__name__} after it, on all ranks"
        for each in self._modules:
            for name, value in named_of(*each).items():
                if name not in self._trained:
                    if not value.requires_grad:
                        continue
                    raise InvalidArgumentError(f"parameter {name} requires a gradient, and did not before. {remedy}")
                before = self._parameters[name]
                # Of a DTensor fully_shard() has another one in its place while it is gathered.
                if value is not before and not is_sharded(before):
                    raise InvalidArgumentError(f"parameter {name} was replaced by another one. {remedy}")
        self._check_held()

    def _check_optimizers(self) -> None:
        """Raise if the optimizers change what is in no fragment, or leave out what is in one."""
        if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in self._optimizers):
            raise InvalidArgumentError(
                "a ZeroRedundancyOptimizer gives all ranks the same parameters in every step: give an optimizer that "
                "has all of its state here"
            )
        theirs = {id(parameter) for parameter in self._check_held()}
        if missing := [held.name for held in self._held if id(held.tensor) not in theirs]:
            raise InvalidArgumentError(
                f"the optimizer does not hold {missing[0]} and {len(missing) - 1} more parameters that require a "
                "gradient: give all optimizers of the model, or freeze what is not trained"
            )

    def _check_held(self) -> list[torch.Tensor]:
        """Raise if the optimizers change what is in no fragment. Return what they change."""
        ours = {id(held.tensor) for held in self._held}
        changed = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
        if left := [parameter for parameter in changed if parameter.requires_grad and id(parameter) not in ours]:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in left[:3])
            raise InvalidArgumentError(
                f"the optimizer holds {len(left)} parameters that are in no fragment, of shapes {shapes}: they would "
                "never be averaged. Give the modules that have them too, or an optimizer without them"
            )
        return changed

    def _averaging_each_step(
        self, settings: Settings, warmup_steps: int
    ) -> list[_DistributedOptimizer | DistributedDataParallel]:
        """What averages gradients in each step over all ranks of the rounds. That ends with the warm-up. An average
        over some of them, say those of a host, goes on.
        """
        owner = session_of(settings.process_set)
        others = set(owner.peers) - {owner.peers[owner.rank]}
        found: list[_DistributedOptimizer | DistributedDataParallel] = []
        reached: set[int] = set()
        for optimizer in self._optimizers:
            if isinstance(optimizer, _DistributedOptimizer) and optimizer._gradients.is_distributed:
                peers = optimizer._gradients.session().peers
                if others.issubset(peers):
                    if optimizer.op == Adasum:
                        raise InvalidArgumentError(
                            "an optimizer with op=Adasum cannot leave off averaging: give the optimizer that it was "
                            "made of, or another op"
                        )
                    found.append(optimizer)
                    reached.update(peers)
        for ddp in self._ddps:
            if others.issubset(peers := dist.get_process_group_ranks(ddp.process_group)):
                if ddp.static_graph:
                    raise InvalidArgumentError(
                        "DistributedDataParallel(static_graph=True) cannot leave gradients as they are in its first "
                        "step: make it without, or give the module that it is made of"
                    )
                found.append(ddp)
                reached.update(peers)
        if warmup_steps and not reached.issuperset(others):
            raise InvalidArgumentError(
                f"warmup_steps={warmup_steps} needs gradients that are averaged in these steps over all ranks of the "
                "process set: give an optimizer of hvd.DistributedOptimizer, or a model in DistributedDataParallel"
            )
        if not warmup_steps and any(isinstance(one, _DistributedOptimizer) for one in found):
            raise InvalidArgumentError(
                "the optimizer averages gradients over all ranks in every step, which leaves nothing to average in "
                "rounds: give the optimizer that it was made of, or make it with process_set=same_site(), or say "
                "warmup_steps"
            )
        return found

    # --- a training ---------------------------------------------------------------------------------------------------

    def __enter__(self: _S) -> _S:
        if self._hook is not None:
            raise InvalidArgumentError(f"{type(self).__name__} was entered twice")
        self._outside.remove()
        self._hook = self._optimizers[-1].register_step_post_hook(self._stepped)
        self._steps_before = self.rounds.step_count
        self._steps_of_others = 0
        self._others = register_optimizer_step_post_hook(self._watch)
        self._follow_warmup()
        return self

    def _refuse(self, *_: object) -> None:
        """A step before the `with` is none of this training, and would leave the ranks apart."""
        raise InvalidArgumentError(
            f"a step of the optimizer was made before the `with` of its {type(self).__name__}, which counts only those "
            "within it: write `with hvd.DiLoCo(...):` around the training"
        )

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        assert self._hook is not None
        self._hook.remove()
        self._hook = None
        self._others.remove()
        self._average_again()
        if kind is None:
            if self.rounds.step_count == self._steps_before:
                _LOG.warning(
                    "no step of the optimizer was made within the `with` of %s on rank %d: does another one train the "
                    "model?",
                    self.rounds.name,
                    session_of(self._process_set).rank,
                )
            self.finish()
            if self._averaging:  # after steps of their own the ranks' states differ, and with them the next steps would
                for optimizer in self._optimizers:
                    if not isinstance(optimizer, torch.optim.LBFGS):
                        broadcast_optimizer_state(optimizer, self._root, process_set=self._process_set)

    @_disable_dynamo
    def _stepped(self, *_: object) -> None:
        self.rounds.step()
        self._follow_warmup()

    def _watch(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Tell of an optimizer that trains in the place of a given one. One that steps after each step of a given one,
        as Lookahead does, is none.
        """
        if any(optimizer is one or optimizer is getattr(one, "optimizer", None) for one in self._optimizers):
            self._steps_of_others = 0
            return
        ours = {id(held.tensor) for held in self._held}
        if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
            self._steps_of_others += 1
            if self._steps_of_others == 2:
                _LOG.warning(
                    "another optimizer than those given, %s, trains the parameters of %s: its steps are not counted, "
                    "and begin no round",
                    type(optimizer).__name__,
                    self.rounds.name,
                )

    def _follow_warmup(self) -> None:
        """Within the `with`, gradients are averaged in the warm-up, and then this rank's own."""
        if self._hook is None:
            return
        if self.rounds.step_count < self.rounds.schedule.warmup_steps:
            self._average_again()
        elif self._local is None:
            self._local = contextlib.ExitStack()
            for one in self._averaging:
                self._local.enter_context(
                    _no_sync(one) if isinstance(one, DistributedDataParallel) else one._without_synchronizing()
                )

    def _average_again(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None

    def sync(self) -> None:
        """One round of everything, now. Collective: all ranks call it after the same step. Blocks."""
        self.rounds.sync()
        self._reshard()

    def flush(self) -> None:
        """Wait for the rounds that are under way, and use their results. Other ranks need not call it."""
        self.rounds.flush()

    def finish(self) -> None:
        """The end of the training, as the end of the `with` is. Collective, and blocks; ranks may have made different
        numbers of steps, and come at different times. All leave with the same parameters.
        """
        self.rounds.finish()
        self._reshard()

    def _reshard(self) -> None:
        for _, module in self._modules:
            reshard(module)

    @contextlib.contextmanager
    def global_parameters(self) -> Iterator[None]:
        """Within it the model has the global parameters, which are equal on all ranks since the last round: for
        evaluation, or to save them. Not collective. No step may be made in it.
        """
        with self.rounds.global_parameters():
            self._reshard()
            try:
                yield
            finally:
                self._reshard()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on: the global parameters, this rank's own, the outer optimizer's state, and what
        codecs keep. Save one on each rank, to go on exactly. Waits for the rounds that are under way.
        """
        state = self.rounds.state_dict(torch.from_numpy)
        like = {held.name: held.tensor for held in (*self._held, *self._buffers)}
        for part, key in _parameters_in(state, self.rounds.own_key):
            part[key] = {name: restored(like[name], values) for name, values in part[key].items()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave. Parameters become this rank's own if the state is of this rank in a world of
        this size. Else they become the global ones, and the steps since the last round are lost.
        """
        own = self.rounds.own_key
        state = {key: dict(value) if key == own else value for key, value in state_dict.items()}
        for part, key in _parameters_in(state, own):
            part[key] = {name: Held("", values).read() for name, values in part[key].items()}
        self.rounds.load_state_dict(state, torch.Tensor.numpy)
        self._reshard()
        self._follow_warmup()


class DiLoCo(LocalSGD):
    """Local steps, and an outer optimizer that takes the mean of what they changed for a gradient (Douillard et al.
    2023). With a delay and several fragments it is Streaming DiLoCo (2025).
    """

    def __init__(
        self,
        model_fragments: torch.nn.Module | Sequence[torch.nn.Module],
        inner_optimizer: _Optimizers,
        outer_optimizer: _Optimizers | None = None,
        sync_every: int = 100,
        backup_device: torch.device | str | None = None,
        *,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float | None = None,
        num_fragments: int = 1,
        should_quantize: bool = False,
        compression: CompressionLike = Compression.none,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        process_set: ProcessSet = global_process_set,
        warmup_steps: int = 0,
        buffers: str = "average",
        weight: Callable[[], float] | None = None,
    ) -> None:
        """Collective, with arguments as `LocalSGD` has them, and these.

        Args:
            model_fragments: a model; or a list of modules, each a fragment with rounds of its own.
            inner_optimizer: the optimizer of the local steps.
            outer_optimizer: a torch.optim.Optimizer over the same parameters, or several. It is taken over: it holds
                the global parameters from now on. None: SGD(lr=0.7, momentum=0.9, nesterov=True).
            sync_every: steps between two rounds of one fragment. Those of the others lie between.
            backup_device: where global parameters and the outer optimizer's state are kept. None: with the model.
            fragment_sync_delay: steps that are made while a round is under way. 0: the rank waits for it.
            fragment_update_alpha: the part of its own parameters that a rank keeps when a round ends. None: 0.5 with a
                delay, else 0.
            num_fragments: of one model, how many fragments of about as many bytes to cut it into.
            should_quantize: torchft's word for `compression="int8"`.
        """
        if not isinstance(num_fragments, int):
            raise InvalidArgumentError(
                f"num_fragments is a {type(num_fragments).__name__}: it must be a number from 1 on. A list of modules "
                "goes in the place of the model"
            )
        modules = _named(model_fragments)
        is_whole = isinstance(model_fragments, torch.nn.Module) and len(modules) == 1
        if num_fragments != 1 and not is_whole:
            raise InvalidArgumentError(
                f"num_fragments={num_fragments} is for one model, and model_fragments are {len(modules)} already"
            )
        if should_quantize and compression is not Compression.none:
            raise InvalidArgumentError('should_quantize=True is compression="int8"; give one of the two')
        compression = "int8" if should_quantize else compression
        count = num_fragments if is_whole else len(modules)
        settings = Settings.of(
            compression=compression, rules=rules, min_numel=min_numel, topology=topology, process_set=process_set
        )

        def outer(held: Sequence[Held]) -> Outer[torch.Tensor]:
            if any(one is other for one in _listed(outer_optimizer) for other in _listed(inner_optimizer)):
                raise InvalidArgumentError(
                    "outer_optimizer is the inner optimizer too: make one more, of the same parameters, which then "
                    "holds the global ones"
                )
            return OuterOptimizer(outer_optimizer, held, backup_device)

        schedule = Schedule(sync_every, count, fragment_sync_delay, warmup_steps)
        self._start(modules, inner_optimizer, outer, schedule, settings, fragment_update_alpha, buffers, weight)


def _listed(optimizers: _Optimizers | None) -> list[torch.optim.Optimizer]:
    if optimizers is None:
        return []
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)


def _named(model: torch.nn.Module | Sequence[torch.nn.Module]) -> list[tuple[str, torch.nn.Module]]:
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.nn.ModuleList):
        return [("", model)]
    modules = list(model)
    if not modules or not all(isinstance(module, torch.nn.Module) for module in modules):
        raise InvalidArgumentError("model_fragments must be a torch.nn.Module, or a list of them")
    return [(f"fragment{place}", module) for place, module in enumerate(modules)]


def _inner(module: torch.nn.Module) -> torch.nn.Module:
    inner = getattr(module, "_orig_mod", module)  # of what torch.compile() gave
    return inner.module if isinstance(inner, DistributedDataParallel) else inner


def _ddps_of(modules: Sequence[tuple[str, torch.nn.Module]]) -> list[DistributedDataParallel]:
    return [each for _, module in modules for each in module.modules() if isinstance(each, DistributedDataParallel)]


@contextlib.contextmanager
def _no_sync(ddp: DistributedDataParallel) -> Iterator[None]:
    """`ddp.no_sync()`, in which no forward gives rank 0's buffers to all either: ranks may make none."""
    before, ddp.require_forward_param_sync = ddp.require_forward_param_sync, False
    with ddp.no_sync():
        yield
    ddp.require_forward_param_sync = before


def _parameters_in(state: dict[str, Any], own: str) -> list[tuple[dict[str, Any], str]]:
    """Where a state has parameters or buffers by name: dictionaries, and keys in them."""
    return [(state, key) for key in ("global", "buffers") if key in state] + (
        [(state[own], "parameters")] if own in state else []
    )


def _fragments_of(modules: Sequence[tuple[str, torch.nn.Module]], count: int) -> list[list[Held]]:
    """The parameters of each fragment: a module's each, or equal parts of the one that there is."""
    parts = [parameters_of(prefix, _inner(module)) for prefix, module in modules]
    seen: set[int] = set()
    for part in parts:
        if shared := [held.name for held in part if id(held.tensor) in seen]:
            raise InvalidArgumentError(f"{shared[0]} is a parameter of two fragments: it would be averaged twice")
        seen |= {id(held.tensor) for held in part}
    if not seen:
        raise InvalidArgumentError("no parameter of the model requires a gradient: there is nothing to average")
    return parts if len(parts) == count else balanced(parts[0], count)
