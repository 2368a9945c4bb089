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

from tests.python.programs import data

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=FutureWarning)


class Door:
    """What a script does when nothing reduces its gradients: one process, or none of the hooks of the others."""

    name = "alone"

    def __init__(self, job: Any, codec: str) -> None:
        self.job, self.codec = job, codec
        self.rank, self.size = job.rank, job.size
        self.seed = self.rank  # other doors broadcast rank 0's parameters
        self.taken = 0  # batches
        self._models = 0
        self.of = self.name  # of a reference: the door that it is beside
        self._watch = Watch()

    def __enter__(self) -> Door:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.end()
        self.close()

    def open(self) -> None:
        """What stands at the beginning of the script."""

    def close(self) -> None:
        """What stands at its end."""

    # --- what a program calls -----------------------------------------------------------------------------------------

    def model(self, model: nn.Module, *, scaler: Any = None, **of_ddp: Any) -> Any:
        self._models += 1
        self._watch.model(model, self.prefix())
        return self.wrap_model(model, scaler, **of_ddp)

    def prefix(self) -> str:
        """What the door puts before the names of a model's parameters, where there are several models."""
        return f"model{self._models}"

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        return model

    def unit(self, module: nn.Module) -> Any:
        """FSDP2 only: a module whose parameters are gathered together."""
        return module

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module, *, scaler: Any = None, **more: Any) -> Any:
        """Also: all ranks begin with the parameters, buffers and the optimizer's state of rank 0."""
        return optimizer

    def again(self, model: Any, **of_ddp: Any) -> Any:
        """After parameters have come or gone, or have been frozen or not: DDP is made anew, as its manual says."""
        self._watch.model(self.bare(model), self.prefix())
        return model

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    @contextlib.contextmanager
    def reduced(self, optimizer: Any) -> Iterator[None]:
        """Within it gradients are the mean; a script that changes them does so here, and steps."""
        yield

    def passes(self, optimizer: Any, count: int) -> None:
        """So many backward passes until the next step."""

    def pass_of(self, model: Any, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of a pass that adds up."""
        return contextlib.nullcontext()

    def bare(self, model: Any) -> Any:
        """The model without what `model` put around it."""
        return model

    def batches(self, steps: int, **more: Any) -> Iterator[data.Batch]:
        for batch in data.whole(steps, self.size, **more):
            self.taken += 1
            yield self.share(batch)

    def share(self, batch: data.Batch) -> data.Batch:
        return data.share(batch, self.rank, self.size)

    @contextlib.contextmanager
    def uneven(self, model: Any) -> Iterator[None]:
        """Around the loop where ranks have different numbers of batches."""
        yield

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Over all ranks, as a script averages a metric."""
        value = value.detach().clone()
        dist.all_reduce(value)
        return value / self.size

    def barrier(self) -> None:
        dist.barrier()

    def has(self, rank: int) -> bool:
        """Whether this process has the data of `rank`."""
        return rank == self.rank

    def weights(self, *models: Any) -> dict[str, torch.Tensor]:
        """Parameters and buffers, for the result."""
        found = {}
        for number, model in enumerate(models):
            for name, value in self.bare(model).state_dict().items():
                found[f"{number}.{name}"] = full(value).clone()
        return found

    def anew(self) -> None:
        """End the session, and begin another in the same processes."""
        self.close()
        self.open()

    def split(self) -> int:
        """From now on the first two ranks and the others are groups of their own: which one this is."""
        pair = self.job.rank // 2
        self.rank, self.size = self.job.rank % 2, 2
        self.group(pair)
        return pair

    def group(self, pair: int) -> None: ...

    # --- what the harness asks ----------------------------------------------------------------------------------------

    def ledger(self) -> dict[str, Any]:
        """For a run with a codec: what each parameter was given, what was applied, and what is pending."""
        pending = self.pending()
        if self.codec == "none" or pending is None:
            return {}
        found = self._watch.found()
        if "sum" in pending:
            found = {
                f"{kind}/sum": sum(v.sum() for k, v in found.items() if k.startswith(kind))
                for kind in ("given", "applied")
            }
        return {**found, **{f"pending/{name}": values for name, values in pending.items()}}

    def pending(self) -> dict[str, Any] | None:
        """This rank's residuals by parameter; None: the door does not say."""
        return None


def full(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach()


class Watch:
    """Adds up what backward gives each parameter on this rank, and what optimizers apply."""

    def __init__(self) -> None:
        self._names: dict[torch.Tensor, str] = {}
        self._given: dict[str, torch.Tensor] = {}
        self._applied: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}  # of the last step
        self._is_new = False  # there was a backward after it
        self._handles: list[Any] = []

    def model(self, model: nn.Module, prefix: str) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        if not self._handles:
            self._handles.append(register_optimizer_step_pre_hook(self._step))
        for name, parameter in model.named_parameters(prefix):
            if parameter in self._names or not parameter.requires_grad:
                continue
            while name in self._given:  # another parameter under a name that there was
                name = f"{name}, anew"
            self._names[parameter] = name
            self._given[name], self._applied[name] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            self._handles.append(parameter.register_hook(lambda gradient, name=name: self._backward(name, gradient)))

    def _backward(self, name: str, gradient: torch.Tensor) -> None:
        self._is_new = True
        self._given[name] += gradient.to_dense() if gradient.is_sparse else gradient

    def _commit(self) -> None:
        for name, gradient in self._last.items():
            self._applied[name] += gradient
        self._last.clear()

    def _step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A hook may run twice in a step: then the last time counts."""
        if self._is_new:
            self._commit()
        self._is_new = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(parameter)
                if name is not None and parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    self._last[name] = gradient.to_dense() if gradient.is_sparse else gradient.clone()

    def found(self) -> dict[str, Any]:
        self._commit()
        given = {f"given/{name}": values.numpy() for name, values in self._given.items()}
        return given | {f"applied/{name}": values.numpy() for name, values in self._applied.items()}

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Alone(Door):
    """The reference: one process that has the data of all ranks."""

    def __init__(self, job: Any, codec: str) -> None:
        super().__init__(job, codec)
        self.seed = 0

    def __exit__(self, *_: object) -> None: ...

    def __enter__(self) -> Door:
        return self

    def anew(self) -> None: ...

    def share(self, batch: data.Batch) -> data.Batch:
        return batch

    def barrier(self) -> None: ...

    def has(self, rank: int) -> bool:
        return True

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return value.detach()


class Ddp(Door):
    """DDP as it is, over gloo: what the reference is where ranks do different things."""

    name = "gloo"
    backend = "gloo"

    def open(self) -> None:
        start_group(self.job, self.backend, self.options())
        self._group: Any = None

    def anew(self) -> None:
        """As scripts do it: where the ranks meet is in the environment."""
        self.close()
        dist.init_process_group(self.backend, pg_options=self.options())
        self._group = None

    def group(self, pair: int) -> None:
        """All ranks make all groups, in one order."""
        pairs = [dist.new_group(ranks, backend=self.backend, pg_options=self.options()) for ranks in ([0, 1], [2, 3])]
        self._group = pairs[pair]

    def options(self) -> Any:
        return None

    def close(self) -> None:
        dist.destroy_process_group()

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        return DistributedDataParallel(model, process_group=self._group, **of_ddp)

    def again(self, model: Any, **of_ddp: Any) -> Any:
        self._models -= 1  # the names stay
        return self.model(self.bare(model), **of_ddp)

    @contextlib.contextmanager
    def uneven(self, model: Any) -> Iterator[None]:
        with model.join():
            yield

    def pass_of(self, model: Any, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else model.no_sync()

    def bare(self, model: Any) -> Any:
        return model.module if isinstance(model, DistributedDataParallel) else model


def start_group(job: Any, backend: str, options: Any = None) -> None:
    """torch's process group, by a store of its own for each program of the job."""
    job.stores = getattr(job, "stores", 0) + 1
    store = dist.FileStore(str(job.folder / f"store{job.stores}"), job.size)
    dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.size, pg_options=options)


class Optimizer(Door):
    """docs/from_horovod.md"""

    name = "optimizer"

    def open(self) -> None:
        import casync.torch as hvd

        self.hvd = hvd
        hvd.init(timeout_s=15.0, process_sets="dynamic")
        self._wrapped: list[Any] = []
        self._set: Any = hvd.global_process_set

    def group(self, pair: int) -> None:
        sets = [self.hvd.add_process_set(ranks) for ranks in ([0, 1], [2, 3])]
        self._set = sets[pair]

    def close(self) -> None:
        self.hvd.shutdown()

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

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        averaged: torch.Tensor = self.hvd.allreduce(value.detach(), name="metric")
        return averaged

    def barrier(self) -> None:
        self.hvd.barrier()

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

    def anew(self) -> None:
        super().anew()
        self.hvd.init(timeout_s=15.0)

    def close(self) -> None:
        self.hvd.shutdown()
        super().close()

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        wrapped = DistributedDataParallel(model, process_group=self._group, **of_ddp)
        names = model.named_parameters(self.prefix())
        state = self.hvd.ddp_state(compression=self.codec, named_parameters=names, grad_scaler=scaler)
        wrapped.register_comm_hook(state, self.hvd.ddp_hook)
        self._states.append(state)
        return wrapped

    def pending(self) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        for state in self._states:
            found |= state.state_dict()["residuals"]
        return {name: values.numpy() for name, values in found.items()}


class Backend(Ddp):
    """docs/torch_backend.md"""

    name = "backend"
    backend = "casync"

    def options(self) -> Any:
        import casync.torch as hvd

        return hvd.Options(compression=self.codec, min_numel=1)

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

        return hvd.Options(compression=self.codec, min_numel=1)

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


class PlainAccelerate(Ddp):
    """A script of Accelerate's, with its own way over gloo."""

    name = "gloo"

    def open(self) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state()
        GradientState._reset_state()
        self.accelerator = Accelerator(cpu=True)

    def close(self) -> None:
        self.accelerator.free_memory()

    def handler(self, **of_ddp: Any) -> Any:
        from accelerate.utils import DistributedDataParallelKwargs

        return DistributedDataParallelKwargs(**of_ddp)

    def wrap_model(self, model: nn.Module, scaler: Any, **of_ddp: Any) -> Any:
        self.accelerator.ddp_handler = self.handler(**of_ddp)
        return self.accelerator.prepare(model)

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module, *, scaler: Any = None, **more: Any) -> Any:
        return self.accelerator.prepare(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        self.accelerator.backward(loss)

    def batches(self, steps: int, **more: Any) -> Iterator[data.Batch]:
        """Accelerate gives each rank its batches of one DataLoader."""
        every = list(data.whole(steps, self.size, **more))
        rows = torch.utils.data.TensorDataset(*(torch.cat(columns) for columns in zip(*every, strict=True)))
        loader = self.accelerator.prepare(torch.utils.data.DataLoader(rows, batch_size=data.ROWS))
        for batch in loader:
            self.taken += 1
            yield batch

    def pass_of(self, model: Any, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self.accelerator.no_sync(model)

    @contextlib.contextmanager
    def uneven(self, model: Any) -> Iterator[None]:
        with self.accelerator.join_uneven_inputs([model]):
            yield

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.accelerator.reduce(value.detach().clone(), "mean")
        return mean

    def barrier(self) -> None:
        self.accelerator.wait_for_everyone()

    def bare(self, model: Any) -> Any:
        return self.accelerator.unwrap_model(model)


class Accelerate(PlainAccelerate):
    """docs/libraries.md"""

    name = "accelerate"

    def close(self) -> None:
        import casync.torch as hvd

        super().close()
        hvd.shutdown()

    def handler(self, **of_ddp: Any) -> Any:
        import casync.accelerate

        return casync.accelerate.ddp_kwargs(compression=self.codec, **of_ddp)


DOORS = {door.name: door for door in (Alone, Ddp, Optimizer, Hook, Backend, Fsdp2, Accelerate)}


def door(name: str, job: Any, codec: str) -> Door:
    return DOORS[name](job, codec)


def reference(beside: str, job: Any, door: str) -> Door:
    own = {"fsdp2": PlainFsdp2, "accelerate": PlainAccelerate}
    made = own.get(door, Ddp)(job, "none") if beside == "gloo" else Alone(job, "none")
    made.of = door
    return made
