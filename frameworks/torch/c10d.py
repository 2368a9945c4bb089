"""CaSync as a backend of `torch.distributed`: `dist.init_process_group("casync")`.

    import casync.torch                       # torch 2.14 and newer find the backend without this line
    dist.init_process_group("casync", pg_options=casync.torch.BackendOptions(compression="onebit"))
    model = DistributedDataParallel(model)

The gradients that DDP and FSDP send while a backward pass runs are compressed; all else is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from casync.errors import NotAvailableError
from torch._C._distributed_c10d import Work

from . import device
from .c10d_checks import check_gathered, parts_of
from .c10d_group import DEVICES, Group, group_of
from .c10d_options import BackendOptions
from .c10d_values import NOT_THERE, assign_all
from .c10d_work import GroupWork, all_of, follow
from .flight_recorder import Size, recorder, sizes_of

__all__ = ["register"]

_Method = TypeVar("_Method", bound=Callable[..., Any])
_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _recorded(kind: str, ends: Callable[..., tuple[Sequence[Size], Sequence[Size]]]) -> Callable[[_Method], _Method]:
    """The Flight Recorder hears of calls of a method: as which `kind` of them, and from what to what sizes."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: _Calls, *arguments: Any, **options: Any) -> Any:
            entry = recorder.begin(self._group.name, kind, *ends(*arguments))
            try:
                work = method(self, *arguments, **options)
            except BaseException:
                recorder.withdraw(entry)  # it was refused
                raise
            work.tells(entry)
            return _for_torch(work)

        _leave_uncompiled(call)
        return cast(_Method, call)

    return decorate


def _leave_uncompiled(function: Any) -> None:
    """torch.compile takes no look at it, nor at what it calls: DDP's reducer calls it while a model is compiled."""
    dynamo: Any = torch._C._dynamo.eval_frame
    if hasattr(dynamo, "_FrameExecStrategy"):  # from torch 2.7 on
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))


def _for_torch(work: GroupWork) -> Work:
    """Up to torch 2.6 a work that only C++ holds, as DDP does, has lost its methods of Python's. A future stays whole;
    but who waits for that one does not make progress meanwhile.
    """
    if _VERSION >= (2, 7):
        return work
    c10d: Any = torch._C._distributed_c10d
    return cast(Work, c10d._create_work_from_future(work.get_future()))


def _same(tensors: Sequence[torch.Tensor], *_: Any) -> tuple[Sequence[Size], Sequence[Size]]:
    sizes = sizes_of(tensors)
    return sizes, sizes


def _single(output: torch.Tensor, given: torch.Tensor, *_: Any) -> tuple[Sequence[Size], Sequence[Size]]:
    return sizes_of([given]), sizes_of([output])


def _each(outputs: Sequence[Any], inputs: Sequence[Any], *_: Any) -> tuple[Sequence[Size], Sequence[Size]]:
    """Return the sizes where tensors that belong together, one for each rank, count as one."""
    return [_joined(one) for one in inputs], [_joined(one) for one in outputs]


def _joined(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Size:
    if isinstance(tensors, torch.Tensor):
        return sizes_of([tensors])[0]
    return (sum(one.numel() for one in tensors),), sizes_of(tensors[:1])[0][1]


def _nothing(*_: Any) -> tuple[Sequence[Size], Sequence[Size]]:
    return (), ()


class _Calls:
    """The methods of a backend by torch's names, which it calls with what it has made of the user's arguments."""

    _group: Group

    @_recorded("all_reduce", _same)
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        work = self._group.allreduce(tensors, _op_of(opts))
        self._group.with_data.hear(tensors, work)
        return work

    @_recorded("allreduce_coalesced", _same)
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._group.allreduce(tensors, _op_of(opts))

    @_recorded("reduce", _same)
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        given = tensors if group.rank == root else [tensor.clone() for tensor in tensors]
        return group.allreduce(given, _op_of(opts), "reduce", root)

    @_recorded("broadcast", _same)
    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._group.broadcast(tensors, opts.rootRank)

    @_recorded("all_gather", _each)
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        return self._group.allgather(outputs[0], inputs[0])

    @_recorded("allgather_coalesced", _each)
    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """`outputs` has a list for each rank, with a tensor for each of `inputs`."""
        del opts
        each = zip(*outputs, strict=True)
        works = [self._group.allgather(of_ranks, given) for of_ranks, given in zip(each, inputs, strict=True)]
        return all_of("all_gather_coalesced", works, outputs)

    @_recorded("_all_gather_base", _single)
    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        del opts
        return self._gather(output, given)

    _allgather_base = all_gather_single

    @_recorded("all_gather_into_tensor_coalesced", _each)
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        del opts
        call = "all_gather_into_tensor_coalesced"
        for output, given in zip(outputs, inputs, strict=True):
            check_gathered(call, output, given, self._group.size)
        return all_of(call, [self._gather(*pair) for pair in zip(outputs, inputs, strict=True)], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather(self, output: torch.Tensor, given: torch.Tensor) -> GroupWork:
        call, size = "all_gather_into_tensor", self._group.size
        check_gathered(call, output, given, size)
        if output.is_contiguous():
            return self._group.allgather(list(output.view(size, given.numel()).unbind()), given, call)
        whole = torch.empty_like(output, memory_format=torch.contiguous_format)
        work = self._group.allgather(list(whole.view(size, given.numel()).unbind()), given, call)
        return follow(work, [output], lambda: assign_all([(output.detach(), whole)]))

    @_recorded("reduce_scatter", _each)
    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        each = zip(outputs, inputs, strict=True)
        works = [self._group.reduce_scatter_parts(output, parts, _op_of(opts)) for output, parts in each]
        return works[0] if len(works) == 1 else all_of("reduce_scatter", works, outputs)

    @_recorded("_reduce_scatter_base", _single)
    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self._group.reduce_scatter([output], [given], _op_of(opts))

    _reduce_scatter_base = reduce_scatter_single

    @_recorded("reduce_scatter_tensor_coalesced", _each)
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._group.reduce_scatter(outputs, inputs, _op_of(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @_recorded("all_to_all", _each)
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        return self._group.alltoall(outputs, inputs)

    @_recorded("all_to_all_single", _single)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        del opts
        call, size = "all_to_all_single", self._group.size
        return self._group.alltoall(
            parts_of(call, "output", output, output_splits, size),
            parts_of(call, "input", given, input_splits, size),
            call,
        )

    alltoall_base = all_to_all_single

    @_recorded("gather", _each)
    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        nothing = inputs[0].new_empty(0)
        to_each = [inputs[0] if rank == root else nothing for rank in range(group.size)]
        return group.alltoall(outputs[0] if group.rank == root else [], to_each, f"gather to {root}")

    @_recorded("scatter", _each)
    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        nothing = outputs[0].new_empty(0)
        to_each = inputs[0] if group.rank == root else [nothing] * group.size
        from_each = [outputs[0] if rank == root else nothing for rank in range(group.size)]
        return group.alltoall(from_each, to_each, f"scatter from {root}")

    @_recorded("barrier", _nothing)
    def barrier(self, opts: Any = None) -> Work:
        del opts
        return self._group.barrier()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Work:
        raise NotAvailableError(f"casync has no send and recv between two ranks. {NOT_THERE}")

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Work:
        raise NotAvailableError(f"casync has no send and recv between two ranks. {NOT_THERE}")

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        raise NotAvailableError(f"casync has no send and recv between two ranks. {NOT_THERE}")

    def shutdown(self) -> None:
        self._group.close()

    def abort(self) -> None:
        self._group.abort()

    def getBackendName(self) -> str:  # noqa: N802
        return "casync"


def _op_of(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _make(options: Any, given: BackendOptions | None) -> Any:
    """Make a new group. torch calls this."""
    if given is not None and not isinstance(given, BackendOptions):
        raise NotAvailableError(f"pg_options={given!r}: casync takes casync.torch.BackendOptions(...)")
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    group = Group(options.store, options.group_rank, ranks, options.timeout, given, options.group_id)
    return _ProcessGroup(options.store, group) if _VERSION < (2, 14) else _make_backend(options, group)


class _ProcessGroup(_Calls, dist.ProcessGroup):  # type: ignore[misc]
    """Up to torch 2.13 a Python class stands for the whole group, on all devices."""

    def __init__(self, store: Any, group: Group) -> None:
        dist.ProcessGroup.__init__(self, group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._store = store
        self._name = ""
        self._description = "undefined"

    def rank(self) -> int:
        return self._group.rank

    def size(self) -> int:
        return self._group.size

    getRank, getSize = rank, size  # noqa: N815

    def get_group_store(self) -> Any:
        return self._store

    @property
    def group_name(self) -> Any:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name  # noqa: N815

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(place) for place in device.places()]

    def _get_backend(self, place: torch.device) -> Any:
        del place
        return self


def _make_backend(options: Any, group: Group) -> Any:
    """From torch 2.14 on a Python class is the backend of some of the group's devices."""
    from torch._C._distributed_c10d import Backend

    class _Backend(_Calls, Backend):
        def __init__(self) -> None:
            Backend.__init__(self, group.rank, group.size)
            self._group = group
            self._options = Backend.Options("casync", timeout=options.timeout)

        @property
        def options(self) -> Any:
            return self._options

    return _Backend()


def register() -> None:
    """Have `torch.distributed` know the backend "casync". `import casync.torch` does so, and from torch 2.14 on the
    entry point of the package.
    """
    if dist.is_available() and not hasattr(dist.Backend, "CASYNC"):
        dist.Backend.register_backend("casync", _make, extended_api=True, devices=DEVICES)
        _take_timeouts()


def _take_timeouts() -> None:
    """Have PyTorch's `_set_pg_timeout`, which knows gloo and nccl alone, know these groups too."""
    c10d: Any = dist.distributed_c10d
    of_pytorch = c10d._set_pg_timeout

    @functools.wraps(of_pytorch)
    def set_timeout(timeout: timedelta, group: Any = None) -> None:
        ours = group_of(c10d._get_default_group() if group is None else group)
        if ours is None:
            of_pytorch(timeout, group)
        else:
            ours.set_timeout(timeout)

    c10d._set_pg_timeout = set_timeout
