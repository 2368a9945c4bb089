"""What a program of PyTorch's is written for, and the references: one process, and DDP over gloo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.python.programs import data


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

    def end(self) -> None:
        """Local SGD only: the end of its `with`, which comes before parameters come or go."""

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
        """By a store of its own for gloo; else as scripts do it: where the ranks meet is in the environment. Ranks of
        gloo may find there what was written for the group before, and wait for a rank that listens no more.
        """
        if self.backend == "gloo":
            return super().anew()
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
