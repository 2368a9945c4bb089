"""The doors of PyTorch's loops: what a script says to have its gradients reduced, and where it says it.

A program calls `door.model` where DDP wraps a model, `door.optimizer` where Horovod wraps an optimizer, and so on. A
door does what its page of the manual says there, and nothing where it has nothing to do.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.python.programs.door import Alone, Ddp, Door
from tests.python.programs.doors_accelerate import Accelerate, PlainAccelerate

torch.set_num_threads(1)


warnings.filterwarnings("ignore", category=FutureWarning)


class Session(Door):
    """A session without torch's process group."""

    def open(self) -> None:
        import casync.torch as hvd

        self.hvd = hvd
        hvd.init(timeout_s=15.0, process_sets="dynamic")
        self._set: Any = hvd.global_process_set

    def group(self, pair: int) -> None:
        sets = [self.hvd.add_process_set(ranks) for ranks in ([0, 1], [2, 3])]
        self._set = sets[pair]

    def close(self) -> None:
        self.hvd.shutdown()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        averaged: torch.Tensor = self.hvd.allreduce(value.detach(), name="metric")
        return averaged

    def barrier(self) -> None:
        self.hvd.barrier()


class Optimizer(Session):
    """docs/from_horovod.md"""

    name = "optimizer"

    def open(self) -> None:
        super().open()
        self._wrapped: list[Any] = []

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module, *, scaler: Any = None, **more: Any) -> Any:
        more.setdefault("named_parameters", list(model.named_parameters(self.prefix())))
        wrapped = self.hvd.DistributedOptimizer(
            optimizer, compression=self.codec, grad_scaler=scaler, process_set=self._set, **more
        )
        if self._set is not self.hvd.global_process_set:
            self._wrapped.append(wrapped)
            return wrapped  # broadcast_parameters is for the whole world
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        if not isinstance(optimizer, torch.optim.LBFGS):  # Horovod refuses its state, too
            self.hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        self._wrapped.append(wrapped)
        return wrapped

    @contextlib.contextmanager
    def reduced(self, optimizer: Any) -> Iterator[None]:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            yield

    def passes(self, optimizer: Any, count: int) -> None:
        optimizer.set_backward_passes_per_step(count)

    @contextlib.contextmanager
    def uneven(self, model: Any) -> Iterator[None]:
        yield
        last = self.hvd.join()
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    def pending(self) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        for wrapped in self._wrapped:
            found |= wrapped.state_dict().get("casync", {}).get("residuals", {})
        return {name: values.numpy() for name, values in found.items()}


class Hook(Ddp):
    """docs/from_ddp.md"""

    name = "hook"

    def open(self) -> None:
        super().open()
        import casync.torch as hvd

        self.hvd = hvd
        hvd.init(timeout_s=15.0)
        self._states: list[Any] = []
        self._is_contiguous = True

    def close(self) -> None:
        self.hvd.shutdown()
        super().close()

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        wrapped = DistributedDataParallel(model, process_group=self._group, **of_ddp)
        names = model.named_parameters(self.prefix())
        state = self.hvd.ddp_state(compression=self.codec, named_parameters=names, grad_scaler=scaler)
        wrapped.register_comm_hook(state, self.hvd.ddp_hook)
        self._states.append(state)
        self._is_contiguous &= all(parameter.is_contiguous() for parameter in model.parameters())
        return wrapped

    def again(self, model: Any, **of_ddp: Any) -> Any:
        """What is pending goes on under the names that stay."""
        kept = self._states.pop().state_dict()
        sizes = {name: one.numel() for name, one in self.bare(model).named_parameters(self.prefix())}
        wrapped = super().again(model, **of_ddp)
        if all(sizes.get(name) == values.numel() for name, values in kept["residuals"].items()):
            self._states[-1].load_state_dict(kept)
        return wrapped

    def pending(self) -> dict[str, Any] | None:
        """Of what is not contiguous in the order of memory, so that only the sum can be compared."""
        found: dict[str, Any] = {}
        for state in self._states:
            found |= state.state_dict()["residuals"]
        if not self._is_contiguous:
            return {"sum": sum(float(values.sum()) for values in found.values())}
        return {name: values.numpy() for name, values in found.items()}


class Backend(Ddp):
    """docs/torch_backend.md"""

    name = "backend"
    backend = "casync"

    def options(self) -> Any:
        import casync.torch as hvd

        return hvd.BackendOptions(compression=self.codec, min_numel=1)

    def pending(self) -> dict[str, Any] | None:
        """What is pending belongs to DDP's buckets, so only its sum can be compared."""
        from casync.torch.c10d_group import group_of

        group = group_of(dist.group.WORLD)
        assert group is not None
        kept = group.session.codec_states
        return {"sum": sum(float(kept.residual(name).sum()) for name in kept.residual_names())}


class Fsdp2(Ddp):
    """docs/torch_backend.md, docs/fsdp2.md"""

    name = "fsdp2"
    backend = "casync"

    def __init__(self, job: Any, codec: str) -> None:
        super().__init__(job, codec)
        self.seed = 0  # fully_shard broadcasts nothing

    def options(self) -> Any:
        import casync.torch as hvd

        return hvd.BackendOptions(compression=self.codec, min_numel=1)

    def model(self, model: nn.Module, **more: Any) -> Any:
        return self.wrap_model(model, None)

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        named = [*model.named_parameters(remove_duplicate=False)]
        is_tied = len(named) > len({id(parameter) for _, parameter in named})  # those must be sharded together
        for child in () if is_tied else model.children():
            if any(True for _ in child.parameters()):
                self.unit(child)
        return self.unit(model)

    def unit(self, module: nn.Module) -> Any:
        """A module whose parameters are gathered together."""
        from torch.distributed.fsdp import fully_shard

        names = ("pairs", "ranks")
        groups = dist.get_world_size() // self.size
        mesh = dist.device_mesh.init_device_mesh("cpu", (groups, self.size), mesh_dim_names=names)["ranks"]
        return fully_shard(module, mesh=mesh)

    def again(self, model: Any, **of_ddp: Any) -> Any:
        return model

    @contextlib.contextmanager
    def pass_of(self, model: Any, is_last: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(is_last)
        yield

    def bare(self, model: Any) -> Any:
        return model


class PlainFsdp2(Fsdp2):
    backend = "gloo"

    def options(self) -> Any:
        return None


class Local(Session):
    """docs/send_less_often.md: a round after each step, which for SGD is the mean of gradients."""

    name = "local"

    def open(self) -> None:
        super().open()
        self._within = contextlib.ExitStack()
        self._changes: list[Changes] = []

    def optimizer(self, optimizer: Any, model: nn.Module, *, scaler: Any = None, every: int = 1, **more: Any) -> Any:
        self._optimizer = optimizer
        self.local = self.hvd.LocalSGD(model, optimizer, every, compression=self.codec, process_set=self._set)
        if self.codec != "none":
            self._changes.append(changes := Changes(self.local, optimizer, model))
            self._within.callback(changes.end)
        self._within.enter_context(self.local)
        return optimizer

    def end(self) -> None:
        self._within.close()

    def again(self, model: Any, **of_ddp: Any) -> Any:
        """With the optimizer that there is."""
        self.optimizer(self._optimizer, super().again(model))
        return model

    def weights(self, *models: Any) -> dict[str, torch.Tensor]:
        self.end()
        return super().weights(*models)

    def ledger(self) -> dict[str, Any]:
        return {name: values for changes in self._changes for name, values in changes.found().items()}


class Changes:
    """By how much this rank's steps change parameters, before a round does; and by how much rounds change them all."""

    def __init__(self, local: Any, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._local, self._parameters = local, dict(model.named_parameters())
        self._first = {name: anchor.clone() for name, anchor in local.rounds.anchors.items()}
        self._given = {name: torch.zeros_like(anchor) for name, anchor in self._first.items()}
        self._hooks = (
            optimizer.register_step_pre_hook(lambda *_: self._add(1)),
            optimizer.register_step_post_hook(lambda *_: self._add(-1)),
        )

    def _add(self, sign: int) -> None:
        for name, given in self._given.items():
            given.add_(self._parameters[name].detach(), alpha=sign)

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def found(self) -> dict[str, Any]:
        rounds = self._local.rounds
        kept = self._local.state_dict()[rounds.own_key].get("casync", {}).get("residuals", {})
        found = {}
        for name, given in self._given.items():
            found[f"given/{rounds.name}.{name}"] = given.numpy()
            found[f"applied/{rounds.name}.{name}"] = (self._first[name] - rounds.anchors[name]).numpy()
            if name in kept:
                found[f"pending/{rounds.name}.{name}"] = kept[name].numpy()
        return found


DOORS = {door.name: door for door in (Alone, Ddp, Optimizer, Hook, Backend, Fsdp2, Local, Accelerate)}


def door(name: str, job: Any, codec: str) -> Door:
    return DOORS[name](job, codec)


def reference(beside: str, job: Any, door: str) -> Door:
    own = {"fsdp2": PlainFsdp2, "accelerate": PlainAccelerate}
    made = own.get(door, Ddp)(job, "none") if beside == "gloo" else Alone(job, "none")
    made.of = door
    return made
