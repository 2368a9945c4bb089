"""The hook for DistributedDataParallel: the same bits as DistributedOptimizer, whatever DDP does with its buckets."""

import copy
import io
import time
from pathlib import Path

import casync.torch as hvd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from casync.session import default
from support.replicas import assert_same_bits, assert_same_everywhere
from support.training import new_session, step

pytestmark = pytest.mark.usefixtures("gloo")


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 40, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's lack it
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(40 * 16, 60), nn.ReLU(), nn.Linear(60, 4))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(6, 1, 4, 4, generator=generator)
    return images, torch.randint(0, 4, (6,), generator=generator)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(forward, optimizer, rank, steps=range(6)):
    for number in steps:
        step(forward, optimizer, batch(number, rank))


def with_hook(model, **arguments):
    """Small buckets, so that there are several, and others after DDP has rebuilt them."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    state = hvd.ddp_state(**arguments)
    ddp.register_comm_hook(state, hvd.ddp_hook)
    return ddp, state


@pytest.mark.interplay(
    "buckets that DDP builds anew", "DDP hook", "supported", "state is kept by parameter, not by bucket"
)
@pytest.mark.parametrize(
    "codec", ["none", "bf16", "always(onebit)", "powersgd(rank=2, start_step=1)", "always(graddrop(drop=0.9))"]
)
def test_same_bits_as_the_optimizer(rank, codec):
    # Directly: who owns a partition follows from the order in which gradients come first, and does not round its own.
    model, other = make_model(), make_model()
    ddp, _ = with_hook(model, compression=codec, named_parameters=model.named_parameters(), topology="direct")
    train(ddp, optimizer_of(model), rank)
    new_session()
    distributed = hvd.DistributedOptimizer(
        optimizer_of(other), other.named_parameters(), compression=codec, topology="direct"
    )
    train(other, distributed, rank)
    assert_same_bits(model, other)


@pytest.mark.interplay("channels_last and other gradients that are not contiguous", "DDP hook", "supported")
def test_uncompressed_is_ddps_own_mean(rank):
    model, other = make_model(), make_model()
    ddp, _ = with_hook(model)
    train(ddp, optimizer_of(model), rank)
    train(DistributedDataParallel(other), optimizer_of(other), rank)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.interplay(
    "buckets that DDP builds anew", "DDP hook", "supported", "state is kept by parameter, not by bucket"
)
@pytest.mark.parametrize("named", [True, False])
def test_resumed_is_uninterrupted(rank, size, named):
    def run(model, steps, saved=None):
        arguments = {"named_parameters": model.named_parameters()} if named else {}
        ddp, state = with_hook(model, compression="always(onebit)", **arguments)
        optimizer = optimizer_of(model)
        if saved is not None:
            held = torch.load(io.BytesIO(saved), weights_only=False)
            model.load_state_dict(held["model"])
            optimizer.load_state_dict(held["optimizer"])
            state.load_state_dict(held["hook"])
        train(ddp, optimizer, rank, steps)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": state.state_dict()}, file)
        assert size == 1 or len(state.state_dict()["residuals"]) == 6
        return file.getvalue()

    whole = make_model()
    run(whole, range(6))
    saved = None
    for steps in (range(3), range(3, 6)):  # each part is a job of its own
        new_session()
        resumed = make_model()
        saved = run(resumed, steps, saved)
    assert_same_bits(whole, resumed)


@pytest.mark.interplay("gradient clipping", "DDP hook", "supported", "after backward, as ever")
@pytest.mark.interplay("gradient accumulation", "DDP hook", "supported", "under `no_sync()`")
def test_gradients_accumulate_under_no_sync(rank):
    model, other = make_model(), make_model()
    ddp, _ = with_hook(model, compression="always(onebit)", named_parameters=model.named_parameters())
    optimizer = optimizer_of(model)
    for number in range(3):
        optimizer.zero_grad()
        with ddp.no_sync():
            F.cross_entropy(ddp(batch(number, rank)[0]), batch(number, rank)[1]).backward()
        F.cross_entropy(ddp(batch(number + 9, rank)[0]), batch(number + 9, rank)[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    new_session()
    distributed = hvd.DistributedOptimizer(
        optimizer_of(other), other.named_parameters(), compression="always(onebit)", backward_passes_per_step=2
    )
    for number in range(3):
        distributed.zero_grad()
        for part in (number, number + 9):
            F.cross_entropy(other(batch(part, rank)[0]), batch(part, rank)[1]).backward()
        distributed.synchronize()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        with distributed.skip_synchronize():
            distributed.step()
    assert_same_bits(model, other)


@pytest.mark.interplay("several optimizers or models", "DDP hook", "supported", "one `ddp_state` per model")
def test_rules_and_two_models(rank):
    model, other = make_model(), copy.deepcopy(make_model())
    rules = {"*.bias": "none", "0.*": "bf16", "*": "always(onebit)"}
    ddp, state = with_hook(model, compression=rules, named_parameters=model.named_parameters())
    second, numbered = with_hook(other, compression="always(onebit)")
    train(ddp, optimizer_of(model), rank)
    train(second, optimizer_of(other), rank)
    if hvd.size() > 1:
        assert {"3.weight", "5.weight"} <= set(state.state_dict()["residuals"])
        assert "5.bias" not in state.state_dict()["residuals"]
        assert set(numbered.state_dict()["residuals"]) == {f"ddp1.{i}" for i in range(6)}


@pytest.mark.interplay("bfloat16 and float16 parameters", "DDP hook", "supported")
def test_bfloat16_parameters(rank):
    model = make_model().bfloat16()
    ddp, _ = with_hook(model, compression="always(onebit)")
    images, labels = batch(0, rank)
    F.cross_entropy(ddp(images.bfloat16()), labels).backward()
    assert_same_everywhere(model[3].weight.grad)


def test_ranks_that_disagree_leave_nothing_outstanding(rank, size):
    model = make_model()
    ddp, _ = with_hook(model, compression="fp16" if rank else "bf16", named_parameters=model.named_parameters())
    images, labels = batch(0, rank)
    if size < 2:
        F.cross_entropy(ddp(images), labels).backward()
    else:
        with pytest.raises(hvd.MismatchError, match=r"weight|bias"):
            F.cross_entropy(ddp(images), labels).backward()
    assert not default.session().has_outstanding
    F.cross_entropy(model(images), labels).backward()  # DDP is through with what failed


def test_what_the_hook_cannot_do_is_refused(rank, size):
    with pytest.raises(hvd.NotAvailableError, match=r"dgc.*momentum.*DistributedOptimizer"):
        hvd.ddp_state(compression="dgc")
    model = make_model()
    ddp, _ = with_hook(model, named_parameters=list(model.named_parameters())[:2])
    images, labels = batch(0, rank)
    with pytest.raises(ValueError, match="named_parameters=.*names no parameter of shape"):
        F.cross_entropy(ddp(images), labels).backward()


def test_no_call_of_the_hook_waits(rank, size, tmp_path_factory):
    """Rank 0 computes no gradient before every other rank's hook has returned from its call with the last bucket."""
    folder = Path(hvd.broadcast_object(str(tmp_path_factory.mktemp("returned")), 0))
    futures = []

    def hook(state: hvd.ddp.DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        futures.append(hvd.ddp_hook(state, bucket))
        if bucket.is_last():
            (folder / str(rank)).touch()
        return futures[-1]

    model = make_model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    ddp.register_comm_hook(hvd.ddp_state(), hook)
    images, labels = batch(0, rank)
    loss = F.cross_entropy(ddp(images), labels)
    deadline = time.monotonic() + 15
    while rank == 0 and len(list(folder.iterdir())) < size - 1:
        assert time.monotonic() < deadline, "a hook of another rank has not returned"
        time.sleep(0.01)
    loss.backward()
    assert futures and all(future.done() for future in futures)
    assert_same_everywhere(model[3].weight.grad)
