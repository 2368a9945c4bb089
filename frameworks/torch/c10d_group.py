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
from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from casync import codecs
from casync._constants import OP_KINDS
from casync.collectives.places import Change, Places, shown
from casync.config import Config
from casync.device import Device
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError
from casync.jobs import Job
from casync.rendezvous import Started
from casync.rules import Rules
from casync.session import Session, Together
from casync.stores import TorchStore
from casync.tcp import TcpJob
from casync.terms import Average, OpKind, Sum, Terms

from . import device
from .c10d_values import NOT_THERE, assign_all, bytes_of, deal_out, plain, reducible, reduction_by, reduction_of
from .c10d_work import GroupWork
from .flight_recorder import recorder
from .tensors import TENSORS

__all__ = ["DEVICES", "Group", "Named", "Options", "check_momentum", "group_of"]

_LOG = logging.getLogger("casync")

DEVICES = ["cpu", "cuda"]
"""Whose tensors the backend takes."""
_NAMES_PER_SIGNATURE = 16
_FIRST_NUMBER = 1 << 14  # of sessions, beyond those of process sets
_numbers = itertools.count()
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class Options:
    """What `init_process_group("casync", pg_options=...)`, `new_group` and `init_device_mesh(backend_override={"dim":
    ("casync", ...)})` take.

    Args:
        compression: a codec (`"onebit"`, `casync.torch.Compression.powersgd(rank=4)`) for float tensors that are summed
            or averaged; None takes `CASYNC_COMPRESSION`.
        rules: codecs by the name of a call, `{"reduce_scatter.*": "fp16", "*": "none"}`, in place of `compression`.
            Names are `allreduce` and `reduce_scatter`, a dot, and the number of elements.
        min_numel: tensors of fewer elements are exact; None takes `CASYNC_MIN_NUMEL`.
        topology: as in `hvd.allreduce`; None takes `CASYNC_TOPOLOGY`.
        timeout: of an operation of this group; None takes that of `init_process_group`.
    """

    def __init__(
        self,
        compression: Any = None,
        *,
        rules: Mapping[str, Any] | None = None,
        min_numel: int | None = None,
        topology: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.compression = compression if rules is None else rules
        self.min_numel = min_numel
        self.topology = topology
        self._timeout = timeout  # torch.distributed looks here


class _Call(NamedTuple):
    """What tells calls apart."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    reduction: int
    root: int
    on_device: bool

    def __str__(self) -> str:
        return f"{self.kind} of {'x'.join(map(str, self.shape))} {self.dtype}"


class Named(NamedTuple):
    """An operation that somebody knows by a name: the name, and its codec."""

    name: str
    codec: str


def check_momentum(rules: Rules) -> None:
    """Raises `NotAvailableError` for a codec that wants what nobody here has."""
    for _, codec in rules.pairs:
        if codecs.takes_momentum(codec):
            raise NotAvailableError(
                f"compression {codec!r} takes over the optimizer's momentum, which a backend of torch.distributed "
                "cannot reach: use casync.torch.DistributedOptimizer"
            )


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
        self.min_numel = self._config.min_numel
        number = next(_numbers)
        started = Started("tcp", "a group of torch.distributed", rank, size, job="c10d")  # the store is the group's own
        deadline = time.monotonic() + self._config.start_timeout_s
        job: Job = TcpJob(started, TorchStore(store), self._config, deadline)
        self.session = Session(self._config, number=_FIRST_NUMBER + number % _FIRST_NUMBER, job=job)
        self.rank, self.size, self.name = rank, size, name
        recorder.know(name, ranks, ranks[rank])
        self._places = Places()
        self._calls: dict[Hashable, int] = {}  # by signature, how many
        self._under: dict[str, threading.Event] = {}  # by name, set when the last call of it has ended
        self._kept: set[str] = set()  # names under which codecs may keep something
        self._stale: set[str] = set()  # and of those, whose calls are no more
        self._expected: tuple[Named, int] | None = None  # the next allreduce, and of how many elements
        self._is_open = True
        _groups.add(self)
        _hear_of_optimizers()

    # --- names --------------------------------------------------------------------------------------------------------

    def _exact_name(self, signature: Hashable) -> str:
        """The next of the few names of calls like this one. All ranks make the same calls in one order."""
        number = self._calls.get(signature, 0)
        self._calls[signature] = number + 1
        name = f"c10d.{_digest(signature)}.{number % _NAMES_PER_SIGNATURE}"
        earlier = self._under.pop(name, None)
        if earlier is not None:
            earlier.wait()
        return name

    def expect(self, named: Named, numel: int) -> None:
        """The next allreduce, if it is of `numel` elements, is `named`: who calls it cannot say so."""
        self._expected = named, numel

    def _take_expected(self, tensors: Sequence[torch.Tensor]) -> Named | None:
        expected, self._expected = self._expected, None
        if expected is not None and [tensor.numel() for tensor in tensors] == [expected[1]]:
            return expected[0]
        return None

    def step_ends(self) -> None:
        """An optimizer has made its step."""
        change = self._places.end()
        if change is not None:
            if not change.is_second:
                self._stale |= self._kept
                self._kept = set()
            if self.rank == 0:
                _tell(change)
        if self._stale:
            with contextlib.suppress(InvalidArgumentError):  # one is still under way: next time
                self.session.codec_states.forget(self._stale)
                self._stale.clear()

    # --- operations ---------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor], op: Any) -> GroupWork:
        reduction = reduction_by(op)
        work = GroupWork(list(tensors), finish=None)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        values = []
        for tensor in tensors:
            flat, to_assign = reducible(tensor, reduction)
            values.append(flat)
            if to_assign is not None:
                copies.append((tensor, to_assign))
        work._finish = lambda: assign_all(copies)
        named = self._take_expected(tensors)
        with self._together(work) as together:
            for flat, tensor in zip(values, tensors, strict=True):
                kept = reduction_of(tensor, reduction)
                codec = self._codec("allreduce", flat, kept)
                self._submit(OpKind.ALLREDUCE, flat, flat, kept, codec, work, together, named=named)
        return work

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        op: Any,
        named: Named | None = None,
    ) -> GroupWork:
        """Each input has a part for each rank, one after the other. `named`: the one that there is."""
        reduction = reduction_by(op)
        if reduction not in (Sum, Average):
            raise NotAvailableError(f"reduce_scatter: casync has SUM and AVG. {NOT_THERE}")
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        work = GroupWork(list(outputs), finish=lambda: assign_all(copies))
        with self._together(work) as together:
            for output, given in zip(outputs, inputs, strict=True):
                source = plain(given.detach()).contiguous().view(self.size, -1)
                target = plain(output.detach())
                if not target.is_contiguous():
                    target = target.contiguous()
                    copies.append((plain(output.detach()), target))
                codec = self._codec("reduce_scatter", source, reduction)
                self._submit(OpKind.REDUCESCATTER, source, target, reduction, codec, work, together, named=named)
        return work

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> GroupWork:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        work = GroupWork(list(tensors), finish=lambda: assign_all(copies))
        with self._together(work) as together:
            for tensor in tensors:
                flat = bytes_of(tensor)
                if flat.data_ptr() != tensor.data_ptr():
                    copies.append((tensor, flat.view(tensor.dtype).view(tensor.shape)))
                self._submit(OpKind.BROADCAST, flat, flat, Sum, "none", work, together, root=root)
        return work

    def allgather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor) -> GroupWork:
        """What each rank gives, in `outputs` by rank."""
        source = bytes_of(given)
        return self._exchange(OpKind.ALLGATHER, outputs, source, rows=source.numel())

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> GroupWork:
        """To each rank its input; from each its output."""
        sources = [bytes_of(one) for one in inputs]
        return self._exchange(OpKind.ALLTOALL, outputs, torch.cat(sources), splits=[one.numel() for one in sources])

    def barrier(self) -> GroupWork:
        work = GroupWork([])
        name = self._exact_name("barrier")
        self._under[name] = work.ended
        registration = Terms(f"barrier.{name}", OpKind.BARRIER, "uint8", (0,)).register(self.session)
        with self._together(work) as together:
            self._start(registration, 0, 0, work, together)
        return work

    def _together(self, work: GroupWork) -> Together:
        """What the operations of `work` are submitted with, in a `with` block. The last of them ends it."""
        work.together = self.session.together(work.over)
        return work.together

    def _exchange(self, kind: int, outputs: Sequence[torch.Tensor], source: torch.Tensor, **lengths: Any) -> GroupWork:
        """Bytes to each rank, and from each. Lengths are each rank's own, so one registration serves all of them."""
        work = GroupWork(list(outputs))

        def over(error: BaseException | None, gathered: Any) -> None:
            if error is None:
                data, rows = gathered
                work._finish = functools.partial(deal_out, data, rows, outputs)
            work.over(error)

        where = TENSORS.device(source)
        if not source.numel():  # else the outputs would be written before their stream is there
            device.await_stream(source)
        on_device = where is not None
        name = self._exact_name((OP_KINDS[kind], on_device))
        self._under[name] = work.ended
        terms = Terms(f"{OP_KINDS[kind]}.{name}", kind, "uint8", (), on_device=on_device)
        registration = terms.register(self.session)
        try:
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

    def _submit(
        self,
        kind: int,
        source: torch.Tensor,
        target: torch.Tensor,
        reduction: int,
        codec: str,
        work: GroupWork,
        together: Together,
        root: int = 0,
        named: Named | None = None,
    ) -> None:
        dtype, shape = TENSORS.dtype(source), tuple(source.shape)
        where = TENSORS.device(source, target)
        call = _Call(OP_KINDS[kind], dtype, shape, reduction, root, where is not None)
        place = None if codec == "none" or named is not None else self._places.place(call)
        if named is not None:
            name, codec = named
        elif place is None:
            name, codec = self._exact_name(call), "none"
        else:
            name = f"c10d.{self._places.generation}.{_digest(call)}.{place}"
            self._kept.add(name)
        terms = Terms(
            name,
            kind,
            dtype,
            shape,
            reduction,
            root,
            compression=codec,
            topology=self._config.topology,
            on_device=call.on_device,
        )
        registration = terms.register(self.session)
        self._under[name] = work.ended
        self._start(registration, source.data_ptr(), target.data_ptr(), work, together, (source, target), where)

    def _start(
        self,
        registration: int,
        source: int,
        target: int,
        work: GroupWork,
        together: Together,
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


def _tell(change: Change) -> None:
    if change.is_second:
        _LOG.info(
            "the second step of a group of torch.distributed has other compressed calls than the first, as when DDP "
            "lays out its buckets anew: codecs begin with the second"
        )
        return
    _LOG.warning(
        "a step of a group of torch.distributed has other compressed calls than the one before: what codecs keep "
        "begins anew. Before: %s. Now: %s",
        shown(change.before),
        shown(change.after),
    )


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
