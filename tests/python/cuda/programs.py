"""Programs as users write them, on one GPU that all ranks share: `casyncrun -np 2 python programs.py`.

Each prints a line of JSON on rank 0: its name, and nothing or what went wrong. Where DEVICE says cpu they run without a
GPU, to try the programs themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casync.torch as hvd
import torch
from torch import nn

import casync
from casync.errors import CasyncError, MismatchError

DEVICE = os.environ.get("DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
STEPS = 6
DTYPES = (torch.float32, torch.float16)

PROGRAMS: list[Callable[[], None]] = []


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS.append(function)
    return function


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    return layers.to(DEVICE)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All ranks' samples, for each step."""
    numbers = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        x = torch.randn(16 * hvd.size(), 3, 8, 8, generator=numbers).to(DEVICE)
        y = torch.randint(0, 10, (16 * hvd.size(),), generator=numbers).to(DEVICE)
        found.append((x, y))
    return found


def own(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch
    return x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])


def assert_replicas_alike(model: nn.Module) -> None:
    mine = flat(model)
    theirs = hvd.broadcast(mine, 0)
    assert torch.equal(mine, theirs), f"replicas differ by {(mine - theirs).abs().max():.3g}"


def plain(make: Callable[[Any], torch.optim.Optimizer]) -> nn.Module:
    """What one process makes of all samples."""
    model = small_net()
    optimizer = make(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def assert_near(model: nn.Module, reference: nn.Module) -> None:
    torch.testing.assert_close(flat(model), flat(reference), rtol=2e-3, atol=2e-4)


def train(model: Callable[[torch.Tensor], torch.Tensor], optimizer: Any) -> list[float]:
    losses = []
    for batch in batches():
        x, y = own(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def wrapped(model: nn.Module, optimizer: torch.optim.Optimizer, **how: Any) -> Any:
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **how)


@program
def uncompressed_equals_one_process() -> None:
    for make in (sgd, lambda p: torch.optim.AdamW(p, lr=1e-3)):
        model = small_net()
        train(model, wrapped(model, make(model.parameters())))
        assert_replicas_alike(model)
        assert_near(model, plain(make))


@program
def every_codec_keeps_replicas_alike() -> None:
    for codec in ("fp16", "bf16", "onebit", "terngrad(bits=2)", "graddrop", "dgc", "powersgd", "threelc", "tbq"):
        model = small_net()
        train(model, wrapped(model, sgd(model.parameters()), compression=codec))
        assert_replicas_alike(model)
        assert torch.isfinite(flat(model)).all(), codec


@program
def streams_are_respected() -> None:
    """A tensor that its stream makes late, and a result that another stream takes at once."""
    if not ON_GPU:
        return
    for codec in ("none", "fp16"):
        for number in range(4):
            side, other = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch.cuda._sleep(50_000_000)
                tensor = torch.full((300_000,), float(number + hvd.rank() + 1), device=DEVICE)
                handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="late", compression=codec)
            with torch.cuda.stream(other):
                result = hvd.synchronize(handle) * 2
                expected = 2.0 * (hvd.size() * (number + 1) + sum(range(hvd.size())))
                assert (result == expected).all(), (codec, number, result[:3], expected)


@program
def backward_on_a_stream_of_its_own() -> None:
    if not ON_GPU:
        return
    reference = plain(sgd)
    for distributed in (False, True):
        model = small_net()
        optimizer = sgd(model.parameters())
        optimizer = wrapped(model, optimizer) if distributed else optimizer
        side = torch.cuda.Stream()
        for batch in batches():
            x, y = own(batch) if distributed else batch
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            torch.cuda.current_stream().wait_stream(side)
        assert_near(model, reference)


@program
def mixed_precision_with_a_scaler() -> None:
    if not ON_GPU:
        return
    model = small_net()
    scaler = torch.amp.GradScaler(init_scale=2.0**40, growth_interval=2)  # the first steps overflow and are skipped
    optimizer = wrapped(model, sgd(model.parameters()), compression="onebit", grad_scaler=scaler)
    for _ in range(5):
        for batch in batches():
            x, y = own(batch)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() < 2.0**40
    assert_replicas_alike(model)
    assert torch.isfinite(flat(model)).all()


@program
def parameters_in_bfloat16() -> None:
    model = small_net().bfloat16()
    optimizer = wrapped(model, sgd(model.parameters()), compression="onebit")
    for batch in batches():
        x, y = own(batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()
    assert_replicas_alike(model)


@program
def one_layer_on_the_cpu() -> None:
    model = nn.ModuleList([nn.Linear(64, 64).to(DEVICE), nn.Linear(64, 1)])
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrapped(model, sgd(model.parameters()), compression="onebit")
    for step in range(STEPS):
        torch.manual_seed(10 * step + hvd.rank())
        optimizer.zero_grad()
        model[1](torch.relu(model[0](torch.randn(8, 64).to(DEVICE))).cpu()).square().mean().backward()
        optimizer.step()
    mine = torch.cat([parameter.detach().reshape(-1).cpu() for parameter in model.parameters()])
    assert torch.equal(mine, hvd.broadcast(mine, 0))


@program
def tensors_dropped_while_they_are_reduced() -> None:
    handles = []
    for number in range(50):
        tensor = torch.full((100_000,), float(number + hvd.rank()), device=DEVICE)
        handles.append(hvd.allreduce_async(tensor * 2, op=hvd.Sum, name=f"dropped.{number}"))
        del tensor
        torch.randn(100_000, device=DEVICE)
    ranks = sum(range(hvd.size()))
    for number, handle in enumerate(handles):
        expected = 2.0 * (hvd.size() * number + ranks)
        assert (hvd.synchronize(handle) == expected).all(), number


@program
def a_large_tensor() -> None:
    elements = (1 << 27) + 3 if ON_GPU else (1 << 20) + 3
    tensor = torch.full((elements,), 1.0 + hvd.rank(), device=DEVICE)
    for codec in ("none", "fp16"):
        result = hvd.allreduce(tensor, op=hvd.Sum, name="large", compression=codec)
        assert (result == sum(range(1, hvd.size() + 1))).all(), codec
    result = hvd.broadcast(tensor, 1, name="large.broadcast")
    assert (result == 2.0).all()


@program
def state_of_an_optimizer_is_broadcast() -> None:
    for capturable in (False, True) if ON_GPU else (False,):
        model = small_net(seed=hvd.rank())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * (1 + hvd.rank()), capturable=capturable)
        if hvd.rank() == 0:
            for x, y in batches()[:2]:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = wrapped(model, optimizer)
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert optimizer.param_groups[0]["lr"] == 1e-3
        train(model, optimizer)
        assert_replicas_alike(model)
        for state in optimizer.state.values():
            assert state["exp_avg"].device.type == DEVICE


@program
def the_hook_of_ddp() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    folder = hvd.broadcast_object(tempfile.mkdtemp(), 0)
    store = dist.FileStore(f"{folder}/store", hvd.size())
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    try:
        reference = plain(sgd)
        for codec in ("none", "onebit"):
            inner = small_net()
            model = DistributedDataParallel(inner)
            model.register_comm_hook(hvd.ddp_state(codec, model.named_parameters()), hvd.ddp_hook)
            train(model, sgd(model.parameters()))
            assert_replicas_alike(inner)
            if codec == "none":
                assert_near(inner, reference)
    finally:
        dist.destroy_process_group()


@program
def a_compiled_model() -> None:
    if not ON_GPU:
        return
    model = small_net()
    compiled = torch.compile(model)
    train(compiled, wrapped(model, sgd(model.parameters())))
    assert_replicas_alike(model)
    assert_near(model, plain(sgd))


@program
def residuals_are_saved_and_loaded() -> None:
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp(), 0))
    model = small_net()
    optimizer = wrapped(model, sgd(model.parameters()), compression="onebit")
    train(model, optimizer)
    casync.save_state(folder / "state")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = {
        name: {k: v.clone() for k, v in state.items()} for name, state in optimizer.state_dict()["state"].items()
    }
    train(model, optimizer)
    after = flat(model)
    model.load_state_dict(weights)
    saved = optimizer.state_dict()
    optimizer.load_state_dict({"state": momentum, "param_groups": saved["param_groups"]})
    casync.load_state(folder / "state")
    train(model, optimizer)
    torch.testing.assert_close(flat(model), after, rtol=1e-5, atol=1e-6)


@program
def capture_is_refused_by_name() -> None:
    if not ON_GPU:
        return
    tensor = torch.ones(1000, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    told = ""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            hvd.allreduce_async_(tensor, name="captured")
        except CasyncError as error:
            told = str(error)
        graph.capture_end()
    assert "captured" in told or "capture" in told, told
    assert (hvd.allreduce(tensor, op=hvd.Sum, name="afterwards") == hvd.size()).all()


@program
def a_parameter_that_is_not_finite() -> None:
    gradient = torch.ones(50_000, device=DEVICE)
    if hvd.rank() == 1:
        gradient[7] = float("inf")
    for _ in range(2):
        result = hvd.allreduce(gradient, name="poisoned", compression="onebit")
    assert not torch.isfinite(result).all()
    gradient[7] = 1.0
    assert torch.isfinite(hvd.allreduce(gradient, name="poisoned", compression="onebit")).all()


@program
def ranks_that_differ_are_told() -> None:
    differing = [torch.ones(10 + hvd.rank(), device=DEVICE), torch.ones(10, dtype=DTYPES[hvd.rank()], device=DEVICE)]
    if ON_GPU:
        differing.append(torch.ones(10, device=DEVICE if hvd.rank() else "cpu"))
    for tensor in differing:
        try:
            hvd.allreduce(tensor, name="differ")
        except MismatchError as error:
            assert "differ" in str(error)
        else:
            raise AssertionError(f"nothing is said of {tensor.shape}, {tensor.dtype} on {tensor.device}")
    assert (hvd.allreduce(torch.ones(3, device=DEVICE), op=hvd.Sum) == hvd.size()).all()


@program
def the_check_of_replicas() -> None:
    hvd.shutdown()
    hvd.init(timeout_s=60.0, check_replicas=2)
    model = small_net()
    train(model, wrapped(model, sgd(model.parameters())))
    assert_replicas_alike(model)


@program
def syncs_of_batch_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), hvd.SyncBatchNorm(8), nn.Flatten(), nn.Linear(8 * 36, 10)).to(DEVICE)
    train(model, wrapped(model, sgd(model.parameters())))
    assert_replicas_alike(model)


@program
def arrays_of_other_libraries() -> None:
    """Right, or refused by name."""
    if not ON_GPU:
        return
    import casync.numpy as on_host

    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return
    array = cupy.ones(10, dtype=cupy.float32)
    try:
        result = on_host.allreduce(array, op=on_host.Sum, name="cupy")
    except CasyncError as error:
        assert "cupy" in str(error) or "device" in str(error).lower() or "GPU" in str(error), str(error)
    else:
        assert float(result.sum()) == 10 * hvd.size()


def main() -> None:
    chosen = sys.argv[1:]
    if ON_GPU:
        torch.cuda.set_device(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    failed = 0
    for function in PROGRAMS:
        if chosen and function.__name__ not in chosen:
            continue
        hvd.init(timeout_s=60.0)  # a session each, as a program has
        wrong = ""
        try:
            function()
        except Exception:
            wrong = traceback.format_exc(limit=-3)
        hvd.shutdown()
        failed += bool(wrong)
        print(json.dumps({"program": function.__name__, "wrong": wrong}), flush=True)
    sys.exit(min(failed, 1))


main()
