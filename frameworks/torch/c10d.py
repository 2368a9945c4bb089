"""CaSync as a backend of `torch.distributed`: `dist.init_process_group("casync")`.

    import casync.torch                       # torch 2.14 and newer find the backend without this line
    dist.init_process_group("casync", pg_options=casync.torch.Options(compression="onebit"))
    model = DistributedDataParallel(model)

Sums and means of float tensors are compressed, by allreduce and by reduce-scatter; all else is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from casync.errors import NotAvailableError
from torch._C._distributed_c10d import Work

from .c10d_group import NOT_THERE, Group, GroupWork, Options, all_of

__all__ = ["register"]


class _Calls:
    """The methods of a backend by torch's names, which it calls with what it has made of the user's arguments."""

    _group: Group

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._group.allreduce(tensors, _op_of(opts))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._group.allreduce(tensors, _op_of(opts))

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        if group.rank == root:
            return group.allreduce(tensors, _op_of(opts))
        return group.allreduce([tensor.clone() for tensor in tensors], _op_of(opts))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._group.broadcast(tensors, opts.rootRank)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        return self._group.allgather(outputs[0], inputs[0])

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> GroupWork:
        del opts
        return self._group.allgather(list(output.view(self._group.size, -1).unbind()), given)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return all_of([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        joined = [torch.cat([one.reshape(-1) for one in of_output]) for of_output in inputs]
        return self._group.reduce_scatter(outputs, joined, _op_of(opts))

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self._group.reduce_scatter([output], [given], _op_of(opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._group.reduce_scatter(outputs, inputs, _op_of(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        return self._group.alltoall(outputs, inputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        del opts
        return self._group.alltoall(_parts(output, output_splits, self._group.size),
                                    _parts(given, input_splits, self._group.size))  # fmt: skip

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        nothing = inputs[0].new_empty(0)
        to_each = [inputs[0] if rank == root else nothing for rank in range(group.size)]
        return group.alltoall(outputs[0] if group.rank == root else [], to_each)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        group, root = self._group, opts.rootRank
        nothing = outputs[0].new_empty(0)
        to_each = inputs[0] if group.rank == root else [nothing] * group.size
        return group.alltoall([outputs[0] if rank == root else nothing for rank in range(group.size)], to_each)

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


def _parts(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[torch.Tensor]:
    """Rows of `tensor` for each rank."""
    counts = list(splits) or [tensor.shape[0] // size] * size
    return list(torch.split(tensor, counts))


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def _make(options: Any, given: Options | None) -> Any:
    """What torch calls for a new group."""
    if given is not None and not isinstance(given, Options):
        raise NotAvailableError(f"pg_options={given!r}: casync takes casync.torch.Options(...)")
    group = Group(options.store, options.group_rank, options.group_size, options.timeout, given)
    return _ProcessGroup(options.store, group) if _version() < (2, 14) else _make_backend(options, group)


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
        del timeout


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
        dist.Backend.register_backend("casync", _make, extended_api=True, devices=["cpu"])
