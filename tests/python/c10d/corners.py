"""One process of a job over `casync`: what other people's programs do with a group. Prints `done`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist
from casync.torch.c10d_group import group_of
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
torch.set_num_threads(1)
OPTIONS = hvd.BackendOptions(compression="onebit", min_numel=1000)
dist.init_process_group("casync", timeout=timedelta(seconds=60), pg_options=OPTIONS)
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def refused(call: Callable[[], object], *texts: str) -> None:
    try:
        call()
    except ValueError as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"not refused: {texts}")


def sizes() -> None:
    """Nothing is written beyond an output, and nothing is read as another dtype."""
    guard = torch.full((5000,), 7.0)
    ones = torch.ones(SIZE * 100)
    scatter, gather = dist.reduce_scatter_tensor, dist.all_gather_into_tensor
    for count in (10, 200):
        refused(functools.partial(scatter, guard[:count], ones), "reduce_scatter_tensor", f"of {count} elements")
    refused(lambda: scatter(torch.zeros(100, dtype=torch.bfloat16), ones), "bfloat16", "float32")
    refused(lambda: scatter(guard[:2], torch.ones(2 * SIZE + 1)), "reduce_scatter_tensor")
    refused(lambda: gather(guard[: SIZE * 3], torch.ones(5)), "all_gather_into_tensor", "of 5 elements")
    refused(lambda: gather(torch.zeros(SIZE * 4, dtype=torch.int32), torch.ones(4)), "int32", "float32")
    refused(lambda: dist.reduce_scatter(guard[:2], [torch.ones(3)] * SIZE), "reduce_scatter", "of 2 elements")
    refused(lambda: dist.all_gather([torch.zeros(2)] * SIZE, torch.ones(2 + RANK)), "all_gather", "has sent")
    refused(lambda: dist.all_to_all_single(torch.zeros(SIZE + 1), torch.ones(SIZE + 1)), "all_to_all_single", "rows")
    assert bool((guard == 7).all())
    parts = [torch.full((3 * rank + 1,), float(rank)) for rank in range(SIZE)]  # of other sizes each
    mine = torch.empty(3 * RANK + 1)
    dist.reduce_scatter(mine, parts)
    assert bool((mine == SIZE * RANK).all())
    dist.reduce_scatter(mine, parts, op=dist.ReduceOp.AVG)
    assert bool((mine == RANK).all())
    empty = torch.empty(0)
    gather(empty, empty)
    scatter(empty, empty)


def callbacks() -> None:
    """They call collectives and wait, on threads whose order is each rank's own."""

    def again(future: Any) -> torch.Tensor:
        value = torch.full((7,), float(future.value()[0][0]))
        result: list[torch.Tensor] = dist.all_reduce(value, async_op=True).get_future().wait()
        return result[0]

    futures = [dist.all_reduce(torch.full((5,), float(i)), async_op=True).get_future().then(again) for i in range(40)]
    for _ in range(20):
        dist.all_reduce(torch.ones(7))
    assert [float(future.wait()[0]) for future in futures] == [float(i * SIZE * SIZE) for i in range(40)]
    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(20)]
    whole = torch.futures.collect_all([work.get_future() for work in works])
    assert len(whole.then(lambda _: dist.barrier() or whole.value()).wait()) == 20
    assert works[0].wait(timedelta(seconds=20))


def alike(model: torch.nn.Module) -> bool:
    mine = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    each = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(each, mine)
    return all(torch.equal(one, mine) for one in each)


def hooks_of_pytorch() -> None:
    """Those that wait in callbacks, and that which is C++."""
    for which in ("powersgd", "fp16"):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)))
        if which == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        torch.manual_seed(1 + RANK)
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = model(torch.randn(64, 64)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0], (which, losses)
        assert alike(model), which


class _Both(torch.autograd.Function):
    """A sum over the ranks, forward and backward, as tensor parallelism has."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.clone())
        return y

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := gradient.clone())
        return y


def only_gradients_are_lossy() -> None:
    weights = torch.rand(100, 100)
    each = [torch.empty(100, 100) for _ in range(SIZE)]
    dist.all_gather(each, weights)
    dist.all_reduce(weights)
    assert torch.allclose(weights, sum(each, torch.zeros(100, 100)))
    group = dist.new_group(pg_options=hvd.BackendOptions(compression="onebit", min_numel=1000, compress_all=True))
    lossy = torch.rand(100, 100)
    exact = lossy.clone()
    dist.all_reduce(lossy, group=group)
    dist.all_reduce(exact)
    assert not torch.allclose(lossy, exact)

    ours = group_of(dist.group.WORLD)
    assert ours is not None
    sent: list[tuple[str, str]] = []
    submit = ours._submits.submit

    def note(kind: int, source: Any, target: Any, call: Any, named: Any, *rest: Any) -> None:
        sent.append((call.kind, named.codec))
        submit(kind, source, target, call, named, *rest)

    vars(ours._submits)["submit"] = note
    lossless, sum_of_gradients = ("all_reduce", "none"), ("all_reduce", "onebit")
    for reentrant in (False, True):
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        for _ in range(3):  # DDP lays out its buckets anew after the first
            sent.clear()
            x = torch.randn(32, 64, requires_grad=True)
            checkpoint(lambda x, model=model: model(_Both.apply(x)), x, use_reentrant=reentrant).sum().backward()
        assert sent == [lossless, lossless, sum_of_gradients, lossless], sent  # forward, again, DDP's, backward
    shards = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    for layer in shards:
        fully_shard(layer)
    fully_shard(shards)
    sent.clear()
    shards(torch.randn(3, 64)).sum().backward()
    assert sent == [("reduce_scatter_tensor", "onebit")] * 2, sent
    del vars(ours._submits)["submit"]


def feedback_is_kept() -> None:
    """Two models of one shape whose optimizers step in turn or in backward, and steps that are left out."""
    ours = group_of(dist.group.WORLD)
    assert ours is not None
    states = ours.session.codec_states
    for how in ("in turn", "in backward"):
        before = states.residual_names()
        torch.manual_seed(0)
        models = [torch.nn.Linear(128, 96, bias=False) for _ in range(2)]
        wrapped = [DistributedDataParallel(model) for model in models]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        totals = [torch.zeros(96, 128), torch.zeros(96, 128)]  # of what each model was given
        means = [torch.zeros(96, 128), torch.zeros(96, 128)]
        if how == "in backward":
            for model, optimizer in zip(models, optimizers, strict=True):
                model.weight.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
        torch.manual_seed(1 + RANK)
        for step in range(12):
            for k, (model, ddp, optimizer) in enumerate(zip(models, wrapped, optimizers, strict=True)):
                x = torch.randn(16, 128)
                model.weight.grad = None
                ddp(x).sum().backward()
                assert model.weight.grad is not None
                means[k] += model.weight.grad
                totals[k] += x.sum(0).expand(96, 128)
                if how == "in turn" and step % 3 != 2:
                    optimizer.step()
        names = sorted(states.residual_names() - before)
        assert len(names) == 2, names
        for k, name in enumerate(names):  # sender1 or sender2 of each: in the order of the models
            kept = torch.from_numpy(states.residual(name)).view(96, 128).clone()
            dist.all_reduce(kept)  # DDP sums what each rank has divided
            dist.all_reduce(totals[k], op=dist.ReduceOp.AVG)
            assert torch.allclose(means[k] + kept, totals[k], atol=1e-2), (how, name)


class _Sums(torch.nn.Module):
    """Two tables whose gradients are what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(64, 64))
        self.second = torch.nn.Parameter(torch.zeros(64, 64))
        self.third = torch.nn.Parameter(torch.zeros(64, 64))

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        tables = (self.first, self.second, self.third)
        parts = [(table * one).sum() for table, one in zip(tables, given, strict=False)]
        return torch.stack(parts).sum()


def residuals_stay_with_their_parameters() -> None:
    """Under a hook written in Python too, before and after DDP lays out its buckets anew. Gradients come in the first
    step only.
    """
    for hook in (None, default_hooks.allreduce_hook):
        model = _Sums()
        wrapped = DistributedDataParallel(model)
        if hook is not None:
            wrapped.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rows = torch.Generator().manual_seed(3)
        first, second = torch.randn(64, 64, generator=rows) * 100, torch.randn(64, 64, generator=rows)
        for step in range(60):
            optimizer.zero_grad()
            given = first * (step == 0), second * (step == 0), torch.zeros(64, 64)
            wrapped(*given).backward()
            optimizer.step()
        for table, wanted in ((model.first, first), (model.second, second), (model.third, torch.zeros(64, 64))):
            torch.testing.assert_close(table.detach(), -wanted, atol=0.1, rtol=0)


def nothing_of_an_unused_parameter_is_lost() -> None:
    """DDP throws away the mean of what no rank has used, and with it what a codec had kept."""
    model = _Sums()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rows = torch.Generator().manual_seed(3)
    total = torch.zeros(64, 64)
    for step in range(40):
        first, second = torch.randn(64, 64, generator=rows), torch.randn(64, 64, generator=rows) + 1
        optimizer.zero_grad()
        given = (first, second, first) if step % 2 == 0 else (first,)
        wrapped(*given).backward()
        total += second * (step % 2 == 0)
        optimizer.step()
    torch.testing.assert_close(model.second.detach(), -total, atol=0.01, rtol=0)


def the_mean_is_of_those_that_have_data() -> None:
    """DDP's C++ takes the value of a future right after the call's wait()."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 2)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with wrapped.join(divide_by_initial_world_size=False):
        for _ in range(5 + 3 * RANK):
            optimizer.zero_grad()
            wrapped(torch.ones(4, 20)).square().mean().backward()
            optimizer.step()
    assert alike(model)


def what_is_no_gradient_has_no_scale() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.ones(1))
    options = hvd.BackendOptions("onebit", compress_all=True, grad_scaler=scaler, min_numel=10)
    group = dist.new_group(backend="casync", pg_options=options)
    got, total = torch.zeros(5000), torch.zeros(5000)
    for step in range(600):
        mine = (torch.arange(5000) % 7).float() * (step < 50)
        total += mine * SIZE
        dist.all_reduce(mine, group=group)
        got += mine
        if step < 50:
            scaler.update(new_scale=2.0 ** (16 - step // 4))
    assert (got - total).norm() < 0.02 * total.norm()


def main() -> None:
    parts = (
        sizes,
        callbacks,
        hooks_of_pytorch,
        only_gradients_are_lossy,
        feedback_is_kept,
        residuals_stay_with_their_parameters,
        nothing_of_an_unused_parameter_is_lost,
        the_mean_is_of_those_that_have_data,
        what_is_no_gradient_has_no_scale,
    )
    for part in parts:
        part()
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("casync", timeout=timedelta(seconds=60))
        dist.all_reduce(total := torch.ones(3))
        assert float(total[0]) == SIZE
    dist.destroy_process_group()
    print("done", flush=True)


main()
