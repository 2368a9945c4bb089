"""The ranks of a process group of torch.distributed, and what its calls come to: see `c10d`.

A group is a session of its own, whose ranks meet in the group's store and are connected by sockets.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from casync._constants import OP_KINDS, REDUCE_OPS
from casync.codecs import specs as codecs
from casync.collectives.call_order import CallOrder
from casync.config.settings import Config
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError
from casync.rendezvous.choose import Started
from casync.rendezvous.stores import TorchStore
from casync.session.completion_group import CompletionGroup
from casync.session.session import Session
from casync.tensors.device import Device
from casync.tensors.signature import Average, OpKind, OpSignature, Sum
from casync.transport.tcp import TcpJob

from . import device
from .c10d_backward import Sender, WithData, backward_pass, is_gone, sender_of
from .c10d_checks import check_count, check_dtypes, check_parts, check_scattered
from .c10d_futures import current_scope
from .c10d_options import Options, check_momentum
from .c10d_sparse import add_up, packed
from .c10d_values import NOT_THERE, assign_all, bytes_of, deal_out, plain, reducible, reduction_by, reduction_of
from .c10d_watch import translated, watch
from .c10d_work import GroupWork, all_of, follow
from .ddp_groups import made
from .flight_recorder import recorder
from .loss_scale import LossScale
from .tensors import TENSORS

__all__ = ["DEVICES", "Group", "NamedOperation", "check_momentum", "group_of"]

_LOG = logging.getLogger("casync")

DEVICES = ["cpu", "cuda"]
"""Whose tensors the backend takes."""
_NAMES_PER_SIGNATURE = 16
_FIRST_NUMBER = 1 << 14  # of sessions, beyond those of process sets
_numbers = itertools.count()
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class _Call(NamedTuple):
    """What tells calls apart."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    reduction: int
    root: int
    on_device: bool


class NamedOperation(NamedTuple):
    """An operation that somebody knows by a name: the name, and its codec."""

    name: str
    codec: str
    topology: str | None = None
    """None takes that of the group."""
    scaler: torch.amp.GradScaler | None = None
    """Of its gradients. None takes that of the group."""


class Group:
    """The ranks of one process group, and what their calls come to."""

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: Sequence[int],
        timeout: timedelta | None,
        options: Options | None,
        name: str,
    ) -> None:
        """`rank` is this process's place in `ranks`, which are the world's."""
        size = len(ranks)
        options = options or Options()
        limit = options._timeout or timeout
        seconds = None if limit is None else limit.total_seconds()
        self._config = Config.from_environment(
            os.environ, min_numel=options.min_numel, topology=options.topology, timeout_s=seconds
        )
        self.rules = codecs.rules_of(self._config.compression if options.compression is None else options.compression)
        check_momentum(self.rules)
        self._loss_scale = LossScale(options.grad_scaler, self.rules)
        self._scaler = options.grad_scaler
        self._scales: dict[torch.amp.GradScaler, tuple[int, float]] = {}  # a backward pass, and the scale in it
        self.min_numel = self._config.min_numel
        number = next(_numbers)
        started = Started("tcp", "a group of torch.distributed", rank, size, job="c10d")  # the store is the group's own
        deadline = time.monotonic() + self._config.start_timeout_s
        job = TcpJob(started, TorchStore(store), self._config, deadline)
        self.session = Session(self._config, number=_FIRST_NUMBER + number % _FIRST_NUMBER, job=job)
        self.rank, self.size, self.name = rank, size, name
        self._store = dist.PrefixStore(job.life, store)
        recorder.know(name, ranks, ranks[rank])
        self.with_data = WithData()
        self._compresses_all = options.compress_all
        self._lock = threading.Lock()  # of what follows: callbacks call from threads of their own
        self._places = CallOrder()
        self._calls: dict[Hashable, int] = {}  # by signature, how many
        self._numbers = itertools.count(1)
        self._under: dict[str, GroupWork] = {}  # by name, the last call of it
        self._senders: dict[str, Hashable] = {}  # names under which codecs may keep something, and whose they are
        self._steps = 0  # of optimizers
        self._has_told = False
        self._expected: tuple[NamedOperation, int] | None = None  # the next allreduce, and of how many elements
        self._is_open = True
        self.limit_s: float | None = None
        """What `set_timeout` has given."""
        if size > 1:
            watch(self)
        _groups.add(self)
        _hear_of_optimizers()

    # --- names --------------------------------------------------------------------------------------------------------

    def _exact_name(self, signature: Hashable, work: GroupWork) -> str:
        """The next of the few names of calls like this one. All ranks make the same calls in one order; those of a
        callback come in the order of that callback.
        """
        scope = current_scope()
        with self._lock:
            calls = self._calls if scope is None else scope.calls
            number = calls.get(signature, 0)
            calls[signature] = number + 1
        whole = signature if scope is None else (signature, scope.path)
        return self._take(f"c10d.{_digest(whole)}.{number % _NAMES_PER_SIGNATURE}", work)

    def _take(self, name: str, work: GroupWork) -> str:
        """`work` has the name `name`, when the call that had it is over."""
        with self._lock:
            if not work.name:
                work.name = name
                work.number = 0 if current_scope() is not None else next(self._numbers)
                work.translate = translated
            earlier = self._under.get(name)
            self._under[name] = work
        if earlier is not None and earlier is not work:
            earlier.settle()
        return name

    def _lossy_name(self, call: _Call, sender: Sender | None, work: GroupWork) -> str | None:
        """The name under which a codec keeps what it has not sent; None: this time it is exact."""
        key = None if sender is None else sender.key
        with self._lock:
            if key is not None:
                place = self._places.of_object(call, key)
            else:
                place = self._places.of_turn(call, f"{self._steps}" if sender is None else sender.turn)
            if place.is_new and sender is not None and sender.may_move:
                return None  # DDP lays out its buckets anew after the first pass, and what is kept would be lost
            if sender is not None and sender.is_reducer and self._may_discard():
                return None
            name = f"c10d.{_digest(call)}.{place.name}"
            is_new = name not in self._senders
            if not self._senders:
                self._loss_scale.look_for_another("Options")
            self._senders[name] = key
        if is_new:
            self._forget_gone()
        return self._take(name, work)

    def _forget_gone(self) -> None:
        """What codecs have kept of models that are no more."""
        with self._lock:
            gone = [name for name, key in self._senders.items() if is_gone(key)]
        with contextlib.suppress(InvalidArgumentError):  # one is still under way: next time
            self.session.codec_states.forget(gone)
            for name in gone:
                self._senders.pop(name, None)

    @property
    def has_scaler(self) -> bool:
        """Whether it was given a GradScaler."""
        return self._scaler is not None

    def _may_discard(self) -> bool:
        """Whether a DDP over this group leaves the mean of a parameter alone that no rank has used. What codecs had
        kept of it would be sent, and lost. Told once.
        """
        found = any(ddp.find_unused_parameters and group_of(ddp.process_group) is self for ddp in made())
        if found and not self._has_told:
            self._has_told = True
            _LOG.warning(
                "DistributedDataParallel(find_unused_parameters=True) does not take the mean of a parameter that no "
                "rank has used, so its gradients are not compressed over the backend casync: use "
                "casync.torch.ddp_hook, which gives such a mean back"
            )
        return found

    def expect(self, named: NamedOperation, numel: int) -> None:
        """The next allreduce, if it is of `numel` elements, is `named`: who calls it cannot say so."""
        self._expected = named, numel

    def _take_expected(self, tensors: Sequence[torch.Tensor]) -> NamedOperation | None:
        expected, self._expected = self._expected, None
        if expected is not None and [tensor.numel() for tensor in tensors] == [expected[1]]:
            return expected[0]
        return None

    def step_ends(self) -> None:
        """An optimizer has made its step."""
        self._steps += 1

    def outstanding(self) -> list[GroupWork]:
        """The calls that have not ended, in order; without those of callbacks."""
        works = {id(work): work for work in list(self._under.values()) if work.number and not work.ended.is_set()}
        return sorted(works.values(), key=lambda work: work.number)

    def store(self) -> Any:
        """A store that only this life of the group has."""
        return self._store

    def give_up(self, why: str) -> None:
        """End the group, on all ranks."""
        self.session.abort(why)

    def set_timeout(self, timeout: timedelta) -> None:
        """Of a call. What the group was made with holds as well."""
        self.limit_s = timeout.total_seconds()
        if self.limit_s > self._config.timeout_s:
            _LOG.warning(
                "set_timeout(%g s): the group was made with %g s, which no call outlasts: make it with as long a "
                "time-out as any call needs, by init_process_group(timeout=) or new_group(timeout=)",
                self.limit_s,
                self._config.timeout_s,
            )

    # --- operations ---------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor], op: Any, call: str = "all_reduce", root: int = 0) -> GroupWork:
        """`root`: of a reduce, which tells its calls apart and no more."""
        reduction = reduction_by(op)
        if any(tensor.layout is not torch.strided for tensor in tensors):
            works = [self._allreduce_sparse(tensor, reduction, call) for tensor in tensors]
            return works[0] if len(works) == 1 else all_of(call, works, list(tensors))
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        values = []
        for tensor in tensors:
            flat, to_assign = reducible(tensor, reduction)
            values.append(flat)
            if to_assign is not None:
                copies.append((tensor, to_assign))
        work = GroupWork(call, list(tensors), finish=lambda: assign_all(copies))
        named = self._take_expected(tensors)
        with self._together(work) as together:
            for flat, tensor in zip(values, tensors, strict=True):
                kept = reduction_of(tensor, reduction)
                self._reduce(OpKind.ALLREDUCE, flat, flat, kept, work, together, named, call, root)
        if work.is_reducer and tensors[0].dtype == torch.float16:
            work.end_as_list()  # PyTorch's fp16 hook is C++ and reads the future of what it sends as a list
        return work

    def _allreduce_sparse(self, tensor: torch.Tensor, reduction: int, call: str) -> GroupWork:
        """Every rank has the rows of all ranks, and adds them up."""
        source = packed(call, tensor, reduction)
        sender = sender_of("allreduce", source)
        kind = f"{call} of a sparse tensor of shape {tuple(tensor.shape)}"
        deal = functools.partial(add_up, reduction)
        rows = source.numel()
        work = self._exchange(OpKind.ALLGATHER, kind, [tensor], source, tensor.dtype, deal=deal, rows=rows)
        work.is_reducer = sender is not None and sender.is_reducer
        return work

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        op: Any,
        named: NamedOperation | None = None,
        call: str = "reduce_scatter_tensor",
    ) -> GroupWork:
        """Each input has a part for each rank, one after the other. `named`: the one that there is."""
        reduction = self._scatters(op)
        for output, given in zip(outputs, inputs, strict=True):
            check_scattered(call, output, given, self.size)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        work = GroupWork(call, list(outputs), finish=lambda: assign_all(copies))
        with self._together(work) as together:
            for output, given in zip(outputs, inputs, strict=True):
                source = plain(given.detach()).contiguous()
                source = source.view(self.size, source.numel() // self.size)
                target = plain(output.detach())
                if not target.is_contiguous():
                    target = target.contiguous()
                    copies.append((plain(output.detach()), target))
                self._reduce(OpKind.REDUCESCATTER, source, target, reduction, work, together, named, call)
        return work

    def reduce_scatter_parts(self, output: torch.Tensor, parts: Sequence[torch.Tensor], op: Any) -> GroupWork:
        """A tensor for each rank, of any sizes. If they differ, all ranks sum all of them."""
        call = "reduce_scatter"
        check_parts(call, output, parts, self.rank, self.size)
        joined = torch.cat([one.detach().reshape(-1) for one in parts])
        if len({one.numel() for one in parts}) == 1:
            return self.reduce_scatter([output], [joined], op, call=call)
        self._scatters(op)
        work = self.allreduce([joined], op, f"{call} of {[one.numel() for one in parts]}")
        begin = sum(one.numel() for one in parts[: self.rank])
        mine = joined[begin : begin + output.numel()].view(output.shape)
        return follow(work, [output], lambda: assign_all([(output.detach(), mine)]))

    def _scatters(self, op: Any) -> int:
        reduction = reduction_by(op)
        if reduction not in (Sum, Average):
            raise NotAvailableError(f"reduce_scatter: casync has SUM and AVG. {NOT_THERE}")
        return reduction

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> GroupWork:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        work = GroupWork("broadcast", list(tensors), finish=lambda: assign_all(copies))
        flats = [bytes_of(tensor) for tensor in tensors]
        with self._together(work) as together:
            for tensor, flat in zip(tensors, flats, strict=True):
                if flat.data_ptr() != tensor.data_ptr():
                    copies.append((tensor, flat.view(tensor.dtype).view(tensor.shape)))
                work.detail = f" from {root}"
                call = self._call("broadcast", flat, Sum, root, tensor.dtype)
                named = NamedOperation(self._exact_name(call, work), "none")
                self._submit(OpKind.BROADCAST, flat, flat, call, named, work, together)
        return work

    def allgather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor, call: str = "all_gather") -> GroupWork:
        """What each rank gives, in `outputs` by rank."""
        check_count(call, "output", outputs, self.size)
        check_dtypes(call, outputs, [given])
        source = bytes_of(given)
        return self._exchange(OpKind.ALLGATHER, call, list(outputs), source, given.dtype, rows=source.numel())

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], call: str = "all_to_all"
    ) -> GroupWork:
        """To each rank its input; from each its output. No outputs: nothing comes."""
        if outputs:
            check_count(call, "output", outputs, self.size)
        check_count(call, "input", inputs, self.size)
        check_dtypes(call, outputs, inputs)
        sources = [bytes_of(one) for one in inputs]
        lengths = [one.numel() for one in sources]
        return self._exchange(OpKind.ALLTOALL, call, list(outputs), torch.cat(sources), inputs[0].dtype, splits=lengths)

    def barrier(self) -> GroupWork:
        work = GroupWork("barrier", [])
        with self._together(work) as together:
            name = self._exact_name("barrier", work)
            registration = self.session.register(OpSignature(f"barrier.{name}", OpKind.BARRIER, "uint8", (0,)))
            self._start(registration, 0, 0, work, together)
        return work

    def _together(self, work: GroupWork) -> CompletionGroup:
        """What the operations of `work` are submitted with, in a `with` block. The last of them ends it."""
        work.together = self.session.together(work.over)
        return work.together

    def _exchange(
        self,
        kind: int,
        call: str,
        outputs: Sequence[torch.Tensor],
        source: torch.Tensor,
        dtype: torch.dtype,
        deal: Callable[[bytearray, Sequence[int], Sequence[torch.Tensor]], None] | None = None,
        **lengths: Any,
    ) -> GroupWork:
        """Bytes to each rank, and from each. Lengths are each rank's own, so one registration serves all of them.
        `deal` puts what has come into `outputs`.
        """
        deal = deal or functools.partial(deal_out, call)
        work = GroupWork(call, outputs)

        def over(error: BaseException | None, gathered: Any) -> None:
            if error is None:
                data, rows = gathered
                work._finish = functools.partial(deal, data, rows, outputs)
            work.over(error)

        where = TENSORS.device(source)
        if not source.numel():  # else the outputs would be written before their stream is there
            device.await_stream(source)
        on_device = where is not None
        name = self._exact_name((call, dtype, on_device), work)
        terms = OpSignature(f"{OP_KINDS[kind]}.{name}", kind, "uint8", (), on_device=on_device)
        try:
            registration = self.session.register(terms)
            self.session.submit(
                registration, source.data_ptr(), 0, (source, work), completion=over, device=where, **lengths
            )
        except CasyncError as error:
            work.over(error)
        return work

    def _codec(self, call: str, flat: torch.Tensor, reduction: int) -> str:
        if reduction not in (Sum, Average) or not flat.is_floating_point():
            return "none"
        if flat.numel() < self._config.min_numel:
            return "none"
        return codecs.codec_by_name(self.rules, f"{call}.{flat.numel()}")

    def _call(
        self, kind: str, flat: torch.Tensor, reduction: int, root: int, dtype: torch.dtype | None = None
    ) -> _Call:
        """`dtype` of the user's tensor, if `flat` is another view of it."""
        name = TENSORS.dtype(flat) if dtype is None else str(dtype)
        return _Call(kind, name, tuple(flat.shape), reduction, root, TENSORS.device(flat) is not None)

    def _reduce(
        self,
        kind: int,
        source: torch.Tensor,
        target: torch.Tensor,
        reduction: int,
        work: GroupWork,
        together: CompletionGroup,
        named: NamedOperation | None,
        what: str,
        root: int = 0,
    ) -> None:
        short = "allreduce" if kind == OpKind.ALLREDUCE else "reduce_scatter"
        sender = sender_of(short, source)
        work.is_reducer = sender is not None and sender.is_reducer
        work.detail = f" by {REDUCE_OPS[reduction]}{f' to {root}' if what == 'reduce' else ''}"
        call = self._call(what, source, reduction, root)
        if named is None:
            codec = "none" if self.with_data.is_some(self.size) else self._codec(short, source, reduction)
            if codec != "none" and (sender is not None or self._compresses_all):
                name = self._lossy_name(call, sender, work)
                named = None if name is None else NamedOperation(name, codec)
            named = named or NamedOperation(self._exact_name(call, work), "none")
            is_gradient = sender is not None
        else:
            is_gradient = True
            self._take(named.name, work)
        self._submit(kind, source, target, call, named, work, together, is_gradient)

    def _submit(
        self,
        kind: int,
        source: torch.Tensor,
        target: torch.Tensor,
        call: _Call,
        named: NamedOperation,
        work: GroupWork,
        together: CompletionGroup,
        is_gradient: bool = False,
    ) -> None:
        terms = OpSignature(
            named.name,
            kind,
            TENSORS.dtype(source),
            call.shape,
            call.reduction,
            call.root if kind == OpKind.BROADCAST else 0,
            compression=named.codec,
            topology=named.topology or self._config.topology,
            on_device=call.on_device,
        )
        registration = self.session.register(terms)
        scaler = (named.scaler or self._scaler) if is_gradient else None
        if scaler is not None and codecs.keeps_state(named.codec):
            self.session.set_optimizer(registration, 0.0, loss_scale=self._scale_of(scaler))
        where = TENSORS.device(source, target)
        self._start(registration, source.data_ptr(), target.data_ptr(), work, together, (source, target), where)

    def _scale_of(self, scaler: torch.amp.GradScaler) -> float:
        """Asked once in a backward pass: on a GPU the question waits for the device."""
        turn = backward_pass()
        asked, scale = self._scales.get(scaler, (-1, 1.0))
        if turn < 0 or turn != asked:
            scale = float(scaler.get_scale())
            self._scales[scaler] = turn, scale
        return scale

    def _start(
        self,
        registration: int,
        source: int,
        target: int,
        work: GroupWork,
        together: CompletionGroup,
        keep: Any = None,
        where: Device | None = None,
    ) -> None:
        try:
            self.session.submit(registration, source, target, keep, completion=together, device=where)
        except CasyncError as error:
            work.refused(error)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _groups.discard(self)
            self.session.shutdown()

    def abort(self) -> None:
        if self._is_open:
            self.session.abort(f"rank {self.rank} called abort() of its process group")
            self.close()


def group_of(process_group: Any) -> Group | None:
    """Of a process group that the backend casync has made; None for another."""
    if hasattr(process_group, "_group"):  # up to torch 2.13
        return process_group._group if isinstance(process_group._group, Group) else None
    for place in DEVICES:
        with contextlib.suppress(RuntimeError):  # it has no backend for those
            backend = process_group._get_backend(torch.device(place))
            if hasattr(backend, "_group"):
                group: Group = backend._group
                return group
    return None


def _digest(signature: Hashable) -> str:
    return hashlib.blake2s(repr(signature).encode(), digest_size=6).hexdigest()


@functools.cache
def _hear_of_optimizers() -> None:
    """Once: a step of an optimizer is the end of a step of all groups."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def after_step(*_: Any) -> None:
        for group in list(_groups):
            group.step_ends()

    register_optimizer_step_post_hook(after_step)
