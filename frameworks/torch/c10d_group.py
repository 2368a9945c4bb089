"""The ranks of a process group of torch.distributed, and what its calls come to: see `c10d`.

A group is a session of its own, whose ranks meet in the group's store and are connected by sockets.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from casync.codecs import specs as codecs
from casync.collectives.settings import check_unwatched
from casync.config.settings import Config
from casync.errors import NotAvailableError
from casync.rendezvous.choose import Started
from casync.rendezvous.stores import TorchStore
from casync.session.session import Session
from casync.tensors.signature import Average, OpKind, OpSignature, Sum
from casync.transport.tcp import TcpJob

from .c10d_backward import WithData, sender_of
from .c10d_checks import check_count, check_dtypes, check_parts, check_scattered
from .c10d_names import CallNames, NamedOperation
from .c10d_options import BackendOptions, check_momentum
from .c10d_sparse import add_up, packed
from .c10d_submits import Submits
from .c10d_values import NOT_THERE, assign_all, bytes_of, plain, reducible, reduction_by, reduction_of
from .c10d_watch import watch
from .c10d_work import GroupWork, all_of, follow
from .ddp_groups import made
from .flight_recorder import recorder
from .loss_scale import LossScale

__all__ = ["DEVICES", "Group", "check_momentum", "group_of"]

_LOG = logging.getLogger("casync")

DEVICES = ["cpu", "cuda"]
"""Whose tensors the backend takes."""
_FIRST_NUMBER = 1 << 14  # of sessions, beyond those of process sets
_numbers = itertools.count()
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class Group:
    """The ranks of one process group, and what their calls come to."""

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: Sequence[int],
        timeout: timedelta | None,
        options: BackendOptions | None,
        name: str,
    ) -> None:
        """`rank` is this process's place in `ranks`, which are the world's."""
        size = len(ranks)
        options = options or BackendOptions()
        limit = options._timeout or timeout
        seconds = None if limit is None else limit.total_seconds()
        self._config = Config.from_environment(
            os.environ, min_numel=options.min_numel, topology=options.topology, timeout_s=seconds
        )
        self.rules = codecs.rules_of(self._config.compression if options.compression is None else options.compression)
        check_momentum(self.rules)
        check_unwatched(self.rules, self._config)
        loss_scale = LossScale(options.grad_scaler, self.rules)
        self.has_scaler = options.grad_scaler is not None
        """Whether it was given a GradScaler."""
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
        self.names = CallNames(self.session, loss_scale, functools.partial(_leaves_unused, self.session))
        self.outstanding = self.names.outstanding
        self._submits = Submits(self.session, self.names, self.rules, options, self.with_data)
        self._is_open = True
        self.limit_s: float | None = None
        """The time-out that `set_timeout` has given."""
        if size > 1:
            watch(self)
        _groups.add(self)
        _hear_of_optimizers()

    def store(self) -> Any:
        """A store that only this life of the group has."""
        return self._store

    def give_up(self, why: str) -> None:
        """End the group, on all ranks."""
        self.session.abort(why)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of each call. The one that the group was made with holds as well."""
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
        named = self.names.take_expected(tensors)
        with self._submits.together(work) as together:
            for flat, tensor in zip(values, tensors, strict=True):
                kept = reduction_of(tensor, reduction)
                self._submits.reduce(OpKind.ALLREDUCE, flat, flat, kept, work, together, named, call, root)
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
        work = self._submits.exchange(OpKind.ALLGATHER, kind, [tensor], source, tensor.dtype, deal=deal, rows=rows)
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
        with self._submits.together(work) as together:
            for output, given in zip(outputs, inputs, strict=True):
                source = plain(given.detach()).contiguous()
                source = source.view(self.size, source.numel() // self.size)
                target = plain(output.detach())
                if not target.is_contiguous():
                    target = target.contiguous()
                    copies.append((plain(output.detach()), target))
                self._submits.reduce(OpKind.REDUCESCATTER, source, target, reduction, work, together, named, call)
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
        with self._submits.together(work) as together:
            for tensor, flat in zip(tensors, flats, strict=True):
                if flat.data_ptr() != tensor.data_ptr():
                    copies.append((tensor, flat.view(tensor.dtype).view(tensor.shape)))
                work.detail = f" from {root}"
                call = self._submits.call("broadcast", flat, Sum, root, tensor.dtype)
                named = NamedOperation(self.names.exact(call, work), "none")
                self._submits.submit(OpKind.BROADCAST, flat, flat, call, named, work, together)
        return work

    def allgather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor, call: str = "all_gather") -> GroupWork:
        """Gather what each rank gives into `outputs`, by rank."""
        check_count(call, "output", outputs, self.size)
        check_dtypes(call, outputs, [given])
        source = bytes_of(given)
        return self._submits.exchange(OpKind.ALLGATHER, call, list(outputs), source, given.dtype, rows=source.numel())

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
        return self._submits.exchange(
            OpKind.ALLTOALL, call, list(outputs), torch.cat(sources), inputs[0].dtype, splits=lengths
        )

    def barrier(self) -> GroupWork:
        work = GroupWork("barrier", [])
        with self._submits.together(work) as together:
            name = self.names.exact("barrier", work)
            registration = self.session.register(OpSignature(f"barrier.{name}", OpKind.BARRIER, "uint8", (0,)))
            self._submits.start(registration, 0, 0, work, together)
        return work

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
    """Return the group behind a process group that the backend casync has made; None for another."""
    if hasattr(process_group, "_group"):  # up to torch 2.13
        return process_group._group if isinstance(process_group._group, Group) else None
    for place in DEVICES:
        with contextlib.suppress(RuntimeError):  # it has no backend for those
            backend = process_group._get_backend(torch.device(place))
            if hasattr(backend, "_group"):
                group: Group = backend._group
                return group
    return None


def _leaves_unused(session: Session) -> bool:
    """Whether a DDP over this session's group leaves the mean of a parameter alone that no rank has used."""
    groups = (group_of(ddp.process_group) for ddp in made() if ddp.find_unused_parameters)
    return any(group is not None and group.session is session for group in groups)


@functools.cache
def _hear_of_optimizers() -> None:
    """Once: a step of an optimizer is the end of a step of all groups."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def after_step(*_: Any) -> None:
        for group in list(_groups):
            group.names.end_step()

    register_optimizer_step_post_hook(after_step)
