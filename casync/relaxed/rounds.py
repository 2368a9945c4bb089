"""The rounds of local SGD and DiLoCo: what is sent when, and what becomes of it.

For each parameter there is a global one, the anchor, which is equal on all ranks. A round sends how far a rank has gone
from it, and applies the mean of that to the anchor:

    change = anchor - parameter;  D = mean over ranks of decoded(encoded(change + residual))
    anchor <- outer(anchor, D);   parameter <- (1 - alpha) anchor + alpha parameter

The parameters themselves are never sent under a codec: what it loses would stay lost. (Local SGD: Stich 2019; DiLoCo:
Douillard et al. 2023; fragments, delay and alpha: Streaming DiLoCo, 2025.)
"""

from __future__ import annotations

import array
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, NoReturn

from casync.checkpoint.optimizer import STATE_KEY
from casync.codecs import specs as codecs
from casync.collectives.gradient_submits import Gradient, GradientSubmits
from casync.collectives.replicas import Replicas
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError, MismatchError, NotAvailableError
from casync.observe.metrics import OWN, RoundMetrics
from casync.plan.plans import GradientPlan
from casync.relaxed.agreement import check_alike
from casync.relaxed.anchors import INTEGERS, Anchors
from casync.relaxed.fragment import Fragment, Held
from casync.relaxed.head import Heard, head, hear, sampled
from casync.relaxed.outer import Outer
from casync.relaxed.saved import FORMAT, check_saved, plans_in, text_of, with_count
from casync.relaxed.schedule import Schedule
from casync.session.gather_bytes import gather_present
from casync.tensors.adaptor import T, Tensors
from casync.tensors.signature import Average, Max, OpKind, OpSignature, Sum

__all__ = ["Rounds"]

_LOG = logging.getLogger("casync")


@dataclass
class _Round(Generic[T]):
    """A round that has begun and not ended."""

    fragment: int
    begun: int
    changes: list[T]
    buffers: list[T]
    head: int | None  # a handle, None in a world of one
    numbers: array.array[float]
    refusal: Exception | None
    """Why this rank cannot take part."""
    heard: Heard | None = None
    handles: list[int] = field(default_factory=list)


class Rounds(Generic[T]):
    """Local steps with rounds between them, of the parameters of one model. One thread calls its methods."""

    def __init__(
        self,
        tensors: Tensors[T],
        fragments: Sequence[Fragment[T]],
        outer: Outer[T],
        schedule: Schedule,
        settings: Settings,
        *,
        alpha: float | None = None,
        weight: Callable[[], float] | None = None,
        check: Callable[[], None] | None = None,
        kind: str = "local_sgd",
    ) -> None:
        """Collective over the ranks of the settings' process set, whose lowest rank gives its parameters, its buffers
        and what is fixed to all.

        Args:
            tensors: the adaptor of the framework in whose tensors is computed.
            fragments: alike on all ranks.
            outer: applies the mean change.
            schedule: of as many fragments.
            settings: codecs, topology and process set.
            alpha: the part of its own parameters that a rank keeps when a round has ended, 0 to 1. None: a half if the
                schedule has a delay, else 0.
            weight: called when a round begins; how much this rank's change counts, from 0 on. None: all count alike.
            check: called when a round begins; raises if the fragments are not what the program trains any more.
            kind: the word that names under which ranks meet begin with.
        """
        alpha = (0.5 if schedule.delay else 0.0) if alpha is None else alpha
        if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
            raise InvalidArgumentError(f"fragment_update_alpha={alpha!r}: it must be a number from 0 to 1")
        if weight is not None and not callable(weight):
            raise InvalidArgumentError(f"weight={weight!r}: it must be a function that returns a number from 0 on")
        if settings.takes_momentum:
            raise NotAvailableError(
                "a codec that takes over the optimizer's momentum is for the gradients of every step, not for what "
                "parameters change by in several: use onebit, powersgd or another codec with feedback"
            )
        if settings.interval > 1:
            raise NotAvailableError(
                "covap has gradients of single steps wait for later ones. Here what waits would be taken back from "
                "parameters for several rounds: give the codec without covap, and a larger sync_every"
            )
        self._tensors, self.fragments, self._outer = tensors, fragments, outer
        self.schedule, self.alpha, self._weight, self._check = schedule, float(alpha), weight, check
        self._submits: GradientSubmits[T] = GradientSubmits(tensors, settings, prefix="")
        owner = self._submits.session()
        number = owner.call_numbers.next(f"relaxed.{kind}")
        self.name = f"{kind}{number}" if number else kind
        self._submits.prefix = f"{self.name}."
        self._owner = owner
        self.step_count = 0
        """Own steps so far."""
        self._place = 0  # rounds begun
        self._under_way: dict[int, _Round[T]] = {}
        self._is_done = False
        self._has_moved = False  # whether a change was ever other than zero
        self._is_told = False  # that no rank's change counted
        self.metrics = RoundMetrics(0, 0, 0, 0.0, 0.0, 0.0)
        """The numbers so far."""
        self._check_alike()
        shapes = {held.name: tensors.shape(held.read()) for held in self._parameters()}
        self._submits.know(shapes)
        codecs.check_rules(settings.rules, shapes, may_warn=owner.rank == 0)
        self._anchors = Anchors(tensors, fragments)
        self._begin_alike()
        outer.take(tensors, self.anchors)
        self._replicas = Replicas(tensors, settings, f"{self.name}.{next(iter(shapes))}")
        self._tell()

    # --- at the beginning ---------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Held[T]]:
        for fragment in self.fragments:
            yield from fragment.parameters

    def _check_alike(self) -> None:
        names = [held.name for held in self._parameters()]
        if duplicates := sorted(name for name, count in Counter(names).items() if count > 1):
            raise InvalidArgumentError(f"two parameters have one name: {', '.join(duplicates)}")
        ours = asdict(self.schedule) | {"alpha": self.alpha, "parameters": len(names)}
        ours |= {"buffers": sum(len(fragment.buffers) for fragment in self.fragments), "outer": self._outer.describe()}
        ours["fixed"] = sum(len(fragment.fixed) for fragment in self.fragments)
        check_alike(self._owner, self.name, ours, names)

    def _begin_alike(self) -> None:
        """Begin the rounds from the global parameters and buffers of the lowest rank."""
        self._anchors.broadcast(self._owner, self._submits.settings, self.name)
        self._anchors.give(self.fragments)
        for fragment in self.fragments:
            fragment.steps = 0

    @property
    def anchors(self) -> dict[str, T]:
        """The global parameters by name, equal on all ranks; in float32 where parameters have 16 bits."""
        return self._anchors.parameters

    @property
    def _is_warming(self) -> bool:
        """Whether each step averages gradients still, so that the ranks' own parameters are equal."""
        return self.step_count < self.schedule.warmup_steps

    def _end_warmup(self) -> None:
        """The rounds begin from the parameters of now."""
        self._anchors.take()
        self._begin_alike()

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """The rank has made one more step of its own. Ends, sends and begins what is due; blocks for it."""
        self._check_own("a step was made")
        self.step_count += 1
        self._tell()
        for fragment in self.fragments:
            fragment.steps += 1
        self._advance(self.step_count)

    @property
    def is_evaluating(self) -> bool:
        """Whether the global parameters are in the place of this rank's own: within `global_parameters`."""
        return self._anchors.aside is not None

    def _check_own(self, what: str) -> None:
        if self._anchors.aside is not None:
            raise InvalidArgumentError(f"{what} within global_parameters(), which is for evaluation")

    def _advance(self, step: int) -> bool:
        """What is due after `step`. Whether a head said that all ranks have ended."""
        ended = False
        if step == self.schedule.warmup_steps:
            self._end_warmup()
        for fragment, one in list(self._under_way.items()):
            if one.heard is None and self.schedule.sends_at(one.begun) <= step:
                ended |= self._send(one)
            if fragment in self._under_way and self.schedule.ends_at(one.begun) <= step:
                self._end(one)
        if ended:
            return True
        for fragment in self.schedule.begins(step):
            one = self._begin(fragment, step)
            if self.schedule.sends_at(step) <= step:
                ended |= self._send(one)
            if fragment in self._under_way and self.schedule.ends_at(step) <= step:
                self._end(one)
            if ended:
                return True
        return False

    def _begin(self, number: int, step: int) -> _Round[T]:
        """Take the changes of a fragment, and tell the others what there is to know before they are sent."""
        tensors, fragment = self._tensors, self.fragments[number]
        if self._owner.size > 1 and number == 0:
            self._replicas.step(self.anchors)
        changes = []
        for held in fragment.parameters:
            values = held.read()
            change = tensors.copy(tensors.beside(self.anchors[held.name], values))
            tensors.accumulate(change, -1.0, values)
            changes.append(tensors.cast(change, tensors.dtype(values)))
        buffers = [tensors.copy(held.read()) for held in fragment.buffers]
        lengths = [tensors.squared_norm(values) for values in (*changes, *buffers)]
        finite = all(map(math.isfinite, lengths))
        self._has_moved |= any(lengths[: len(changes)])
        if fragment.steps and not self._has_moved and number == len(self.fragments) - 1:
            self._tell_still()
        weight, refusal = 0.0, None
        try:
            if self._check is not None:
                self._check()
            weight = self._own_weight() if fragment.steps else 0.0
        except Exception as error:  # which the others must hear of, since they wait for this rank
            refusal = error
        fragment.steps = 0
        self._place += 1
        numbers = array.array(
            "d",
            head(
                self._owner.rank, self._owner.size, weight=weight, is_finite=finite, is_done=self._is_done,
                place=self._place, samples=sampled(tensors, changes, self._place) if finite else (),
                refuses=refusal is not None,
            ),
        )  # fmt: skip
        one = _Round(number, step, changes, buffers, self._submit_head(number, numbers), numbers, refusal)
        self._under_way[number] = one
        return one

    def _tell_still(self) -> None:
        _LOG.warning(
            "no parameter of %s has changed in %d steps of rank %d. They must be changed in place: w -= g changes an "
            "array, and w = w - g makes another one",
            self.name,
            self.step_count,
            self._owner.peers[self._owner.rank],
        )
        self._has_moved = True  # told once

    def _own_weight(self) -> float:
        weight = 1.0 if self._weight is None else float(self._weight())
        if not 0 <= weight < math.inf:
            raise InvalidArgumentError(f"weight() returned {weight}: it must be a finite number from 0 on")
        return weight

    def _submit_head(self, fragment: int, numbers: array.array[float]) -> int | None:
        if self._owner.size == 1:
            return None
        name = self._owner.tensor_name(OpKind.ALLREDUCE, f"{OWN}{self.name}.{fragment}")
        registration = self._owner.register(OpSignature(name, OpKind.ALLREDUCE, "float64", (len(numbers),), Sum))
        address, _ = numbers.buffer_info()
        return self._owner.submit(registration, address, address, numbers)

    def _send(self, one: _Round[T]) -> bool:
        """Hear the others' heads, and send the changes, or drop the round. Whether all ranks have ended."""
        if one.head is not None:
            with self._waiting():
                self._owner.synchronize(one.head)
        one.heard = heard = hear(one.numbers)
        if heard.refusing:
            del self._under_way[one.fragment]
            self._raise_refusal(one)
        if not heard.same_place:
            del self._under_way[one.fragment]
            raise MismatchError(
                f"the ranks are in different rounds of {self.name}; this one begins round {self._place} after step "
                f"{one.begun}. Each must load the state of the same step"
            )
        fragment = self.fragments[one.fragment]
        if heard.broken:
            del self._under_way[one.fragment]
            self._tell(void_rounds=self.metrics.void_rounds + 1)
            self._anchors.give([fragment])
            self._tell_void(one, heard)
        elif heard.total == 0:
            del self._under_way[one.fragment]
            self._tell_weightless()
        elif self._owner.size > 1:
            self._tell_together(heard)
            self._submit_changes(one, heard, fragment)
        return heard.all_done

    def _raise_refusal(self, one: _Round[T]) -> NoReturn:
        """Raise on all ranks what one of them has to say."""
        mine = "" if one.refusal is None else f"{type(one.refusal).__name__}: {one.refusal}"
        everyones = {} if self._owner.size == 1 else gather_present(self._owner, f"{self.name}.why", mine.encode())
        if one.refusal is not None:
            raise one.refusal
        rank, why = next((rank, bytes(text).decode()) for rank, text in everyones.items() if len(text))
        raise MismatchError(
            f"rank {self._owner.peers[rank]} cannot take part in round {self._place} of {self.name}: {why}"
        )

    def _tell_weightless(self) -> None:
        if self._weight is not None and not self._is_done and not self._is_told:
            self._is_told = True
            _LOG.warning("weight() was 0 on all ranks in a round of %s, which was left out", self.name)

    def _tell_together(self, heard: Heard) -> None:
        """Ranks that train alone are apart in their first round."""
        if self._place != 1 or self._is_done or self._owner.rank != 0:
            return
        if self._has_moved and heard.spread == 0 and sum(map(bool, heard.weights)) > 1:
            _LOG.warning(
                "the ranks are not apart in the first round of %s: have they the same data, or does something average "
                "their gradients still? Of DistributedDataParallel give the wrapped model",
                self.name,
            )

    def _tell_void(self, one: _Round[T], heard: Heard) -> None:
        if self._owner.rank != min(rank for rank, weight in enumerate(heard.weights) if weight or rank in heard.broken):
            return
        ranks = ", ".join(str(self._owner.peers[rank]) for rank in heard.broken)
        _LOG.warning(
            "round %d of %s is void: a parameter or buffer of rank %s holds NaN or Inf. All ranks go on from the "
            "global parameters of the round before, and what is pending stays. If it happens again, the optimizer's "
            "state of that rank may hold NaN too",
            self._place,
            self.name,
            ranks,
        )

    def _submit_changes(self, one: _Round[T], heard: Heard, fragment: Fragment[T]) -> None:
        """Submit all in place; the last one wakes the runtime, which so finds all of them."""
        tensors, factor = self._tensors, heard.factor(self._owner.rank)
        if factor != 1.0:
            one.changes = [tensors.scaled(change, factor) for change in one.changes]
            one.buffers = [
                values if tensors.dtype(values) in INTEGERS else tensors.scaled(values, factor)
                for values in one.buffers
            ]
        gradients = [
            self._registered(held.name, change) for held, change in zip(fragment.parameters, one.changes, strict=True)
        ]
        registrations = [
            self._registered_buffer(held.name, values)
            for held, values in zip(fragment.buffers, one.buffers, strict=True)
        ]
        last = len(gradients) + len(registrations) - 1
        for place, (gradient, change) in enumerate(zip(gradients, one.changes, strict=True)):
            one.handles.append(self._submits.submit(self._owner, gradient, change, wake=place == last))
        for place, (registration, values) in enumerate(zip(registrations, one.buffers, strict=True), len(gradients)):
            address, device = tensors.address(values), tensors.device(values)
            one.handles.append(
                self._owner.submit(registration, address, address, values, wake=place == last, device=device)
            )

    def _registered(self, name: str, change: T) -> Gradient:
        tensors, gradient = self._tensors, self._submits.by_name[name]
        dtype, shape, device = tensors.dtype(change), tensors.shape(change), tensors.device(change)
        if not self._submits.is_registered(self._owner, gradient, dtype, shape, device):
            self._submits.register(self._owner, gradient, change, dtype, shape, device)
        return gradient

    def _registered_buffer(self, name: str, values: T) -> int:
        tensors = self._tensors
        full = self._owner.tensor_name(OpKind.ALLREDUCE, f"{self.name}.{name}")
        op = Max if tensors.dtype(values) in INTEGERS else Average
        on_device = tensors.device(values) is not None
        return self._owner.register(
            OpSignature(full, OpKind.ALLREDUCE, tensors.dtype(values), tensors.shape(values), op, on_device=on_device)
        )

    def _end(self, one: _Round[T]) -> None:
        """Wait for the mean change, and apply it."""
        tensors, fragment = self._tensors, self.fragments[one.fragment]
        del self._under_way[one.fragment]
        with self._waiting():
            self._owner.synchronize_all(one.handles)
        names = [held.name for held in fragment.parameters]
        anchors = [self.anchors[name] for name in names]
        changes = [
            tensors.beside(tensors.cast(change, tensors.dtype(anchor)), anchor)
            for anchor, change in zip(anchors, one.changes, strict=True)
        ]
        assert one.heard is not None
        lengths = sampled(tensors, anchors, self._place)
        self._outer.step(names, changes)
        for held in fragment.parameters:
            self._anchors.mix(held, self.alpha)
        for held, values in zip(fragment.buffers, one.buffers, strict=True):
            tensors.assign(self._anchors.buffers[held.name], values)
            held.write(values)
        numel = sum(math.prod(tensors.shape(anchor)) for anchor in anchors)
        apart, length = math.sqrt(one.heard.spread), math.sqrt(math.fsum(one * one for one in lengths))
        self._tell(
            rounds=self.metrics.rounds + 1,
            distance=apart * math.sqrt(numel / len(lengths)) if lengths else 0.0,
            relative_distance=apart / length if length else 0.0,
        )
        if self.metrics.rounds == 1:
            self._tell_late_start()

    def _tell_late_start(self) -> None:
        """A codec counts rounds here, which are few."""
        if self._owner.rank != 0:
            return
        plans = self._owner.plans()
        late: dict[tuple[str, int], int] = {}
        for gradient in self._submits.by_name.values():
            plan = plans.get(gradient.tensor)
            asked = "" if gradient.asked is None else gradient.asked.compression
            if plan is not None and plan.codec == "none" and plan.until > 1 and not asked.startswith("auto"):
                codec = asked.removeprefix("always(").removesuffix(")") if asked.startswith("always(") else asked
                late[codec, plan.until] = late.get((codec, plan.until), 0) + 1
        for (codec, first), count in late.items():
            _LOG.warning(
                "%s sends %d of %d parameters uncompressed for its first %d rounds, because a codec's start_step "
                "counts rounds here: compression %s with start_step=0 compresses all of them",
                self.name,
                count,
                len(self._submits.by_name),
                first,
                codec,
            )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self._tell(exposed_seconds=self.metrics.exposed_seconds + time.monotonic() - begun)

    def _tell(self, **numbers: Any) -> None:
        self.metrics = self._owner.rounds[self.name] = replace(self.metrics, steps=self.step_count, **numbers)

    # --- between steps ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """End the rounds that are under way: wait for their results, and apply them. Other ranks need not call it."""
        if not self._under_way:
            return
        with self._anchors.own_in_place():
            for number, one in list(self._under_way.items()):
                if one.heard is None:
                    self._send(one)
                if number in self._under_way:
                    self._end(one)

    def sync(self) -> None:
        """One round of all fragments, now. Collective: all ranks call it after the same step."""
        self._check_own("a round was asked for")
        self.flush()
        if self._is_warming:
            self._end_warmup()
            return
        for number in range(len(self.fragments)):
            one = self._begin(number, self.step_count)
            self._send(one)
            if number in self._under_way:
                self._end(one)

    def finish(self) -> None:
        """The end of this rank's training. Collective; ranks may come here after different numbers of steps. Those that
        are here take part in the others' rounds, with weight 0 once they have sent their own steps. When all are here
        what is left is sent, and all ranks have the same parameters.
        """
        self._check_own("finish() was called")
        if self._is_warming:
            self._end_warmup()
            return
        for number, fragment in enumerate(self.fragments):
            if (
                not fragment.steps
                and not self.alpha
                and number not in self._under_way
                and self._anchors.differ([fragment])
            ):
                fragment.steps = 1  # it was changed since the last round, without a step: that is not to be lost
        self._is_done = True
        step = self.step_count
        while self._owner.size > 1 and not self._advance(step := step + 1):
            pass
        self.sync()
        self._anchors.give(self.fragments)
        self._is_done = False

    @contextmanager
    def global_parameters(self) -> Iterator[None]:
        """Within it parameters and buffers are the global ones, equal on all ranks: for evaluation. Not collective."""
        if self._is_warming and not self.is_evaluating:
            self._anchors.take()
        with self._anchors.in_place():
            yield

    def differs_from_global(self) -> bool:
        """Whether the parameters or float buffers are now others than the global ones."""
        return self._anchors.differ(self.fragments)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self, convert: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the global parameters, this rank's own, and all else that `load_state_dict` needs to go on. Ends the
        rounds that are under way. `convert` makes NumPy's arrays the framework's.
        """
        self.flush()
        if self._is_warming:
            self._anchors.take()
        state = {
            "format": FORMAT,
            "step": self.step_count,
            "place": self._place,
            "steps": [fragment.steps for fragment in self.fragments],
            "global": dict(self.anchors),
            "buffers": dict(self._anchors.buffers),
            "outer": self._outer.state_dict(),
        }
        own = {
            "step": self.step_count,
            "steps": [fragment.steps for fragment in self.fragments],
            "parameters": self._anchors.own(),
            "plans": text_of(self._plans()),
            STATE_KEY: self._submits.state_dict(list(self._submits.by_name.values()), convert),
        }
        return {**state, self.own_key: with_count(state, own)}

    @property
    def _prefix(self) -> str:
        return self._owner.tensor_name(OpKind.ALLREDUCE, f"{self.name}.")

    def _plans(self) -> dict[str, GradientPlan]:
        """The plans of what rounds send. Fragments that first met in another order would have other owners, and so
        other bits.
        """
        plans, prefix = self._owner.plans(), self._prefix
        return {name.removeprefix(prefix): plan for name, plan in plans.items() if name.startswith(prefix)}

    def _shapes(self, values: Mapping[str, T]) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._tensors.shape(one)) for name, one in values.items()}

    @property
    def own_key(self) -> str:
        """The key in the state of what is this rank's alone. It names the rank, so that `torch.distributed.checkpoint`,
        which puts the states of all ranks together, keeps all.
        """
        return f"rank {self._owner.rank} of {self._owner.size}"

    def load_state_dict(self, state: Mapping[str, Any], convert: Callable[[Any], Any]) -> None:
        """Put back what `state_dict` gave. On another rank, or another number of ranks, parameters become the global
        ones: steps that were made since the last round are lost. `convert` makes arrays NumPy's.
        """
        self._check_own("a state was loaded")
        check_saved(
            state, self.own_key, len(self.fragments), self._shapes(self.anchors), self._shapes(self._anchors.buffers)
        )
        self.flush()
        for shared, kept in ((self.anchors, state["global"]), (self._anchors.buffers, state["buffers"])):
            for name, values in kept.items():
                self._tensors.assign(shared[name], values)
        self._outer.load_state_dict(state["outer"])
        own = state.get(self.own_key)
        self._place = state["place"]
        self.step_count = (own or state)["step"]
        for fragment, steps in zip(self.fragments, (own or state)["steps"], strict=True):
            fragment.steps = steps
        if own is None:
            self._anchors.give(self.fragments)
        else:
            for held in self._anchors.all():
                held.write(own["parameters"][held.name])
            self._owner.fix_plans({self._prefix + name: plan for name, plan in plans_in(own["plans"]).items()})
        others: Mapping[str, Any] = next((kept for key, kept in state.items() if key.startswith("rank ")), {})
        saved = (others if own is None else own).get(STATE_KEY)
        self._submits.load_state_dict(list(self._submits.by_name.values()), saved, convert)
