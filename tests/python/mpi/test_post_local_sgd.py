"""LocalSGD where gradients are averaged too: in DistributedDataParallel, DistributedOptimizer and fully_shard."""

import copy

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from casync.errors import InvalidArgumentError, MismatchError
from support.local_steps import adam, average, sgd, simulated, train
from support.replicas import assert_replicas_identical, assert_same, assert_same_bits, assert_same_everywhere
from support.training import batch_of, make_model, new_session


def is_same_everywhere(model):
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    rows = hvd.allgather(flat.reshape(1, -1))
    return all(torch.equal(row, rows[0]) for row in rows)


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 4))


def wrapped(model, **arguments):
    return hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters(), **arguments)


# --- DistributedDataParallel and DistributedOptimizer -----------------------------------------------------------------


def test_in_ddp_gradients_are_each_ranks_own_until_the_end(gloo, rank, size):
    model, other = make_model(), make_model()
    ddp = DistributedDataParallel(model)
    optimizer = sgd(model)
    with hvd.LocalSGD(ddp, optimizer, sync_every=3):
        train(ddp, optimizer, rank, range(6))
    assert_same(model, simulated(size, 6, 3)[rank])
    other.load_state_dict(model.state_dict())
    train(ddp, optimizer, rank, range(6, 8))
    train(DistributedDataParallel(other), sgd(other), rank, range(6, 8))
    assert_same_bits(model, other)


def test_in_ddp_a_rank_may_have_no_data(gloo, rank):
    """DDP's first forward gives rank 0's buffers to all, if rank 0 makes one."""
    model = with_batch_norm()
    ddp = DistributedDataParallel(model)
    optimizer = sgd(model)
    with hvd.LocalSGD(ddp, optimizer, sync_every=3):
        train(ddp, optimizer, rank, range(4 * rank))
    assert_replicas_identical(model)


def test_after_the_end_momentum_is_alike_too(gloo, rank):
    model = make_model()
    ddp = DistributedDataParallel(model)
    optimizer = adam(model)
    with hvd.LocalSGD(ddp, optimizer, sync_every=3):
        train(ddp, optimizer, rank, range(4))
    train(ddp, optimizer, rank, range(4, 7))
    assert_replicas_identical(model)


def test_ddp_with_a_static_graph_is_refused(gloo, several):
    ddp = DistributedDataParallel(make_model(), static_graph=True)
    with pytest.raises(InvalidArgumentError, match="static_graph"):
        hvd.LocalSGD(ddp, sgd(ddp), sync_every=3)


@pytest.mark.parametrize("codec", ["none", "onebit"])
@pytest.mark.parametrize("kind", [hvd.LocalSGD, hvd.DiLoCo])
def test_a_warmup_is_distributed_optimizer_bit_for_bit(rank, size, kind, codec):
    model, other = make_model(), make_model()
    optimizer = wrapped(model)
    with kind(model, optimizer, sync_every=3, warmup_steps=4, compression=codec, min_numel=0) as local:
        train(model, optimizer, rank, range(4))
        with local.global_parameters():
            at_end = copy.deepcopy(model)
        assert size == 1 or all(torch.equal(local.rounds.anchors[n], p) for n, p in at_end.named_parameters())
        train(model, optimizer, rank, [4])
        assert is_same_everywhere(model) == (size == 1)
        if codec == "none" and kind is hvd.LocalSGD:  # the first round is of the steps since the warm-up
            train(model, optimizer, rank, range(5, 7))
            models = [copy.deepcopy(at_end) for _ in range(size)]
            for number, each in enumerate(models):
                train(each, sgd(each), number, range(4, 7))
            average(models)
            assert_same(model, models[0])
    del optimizer, local
    new_session()
    train(other, wrapped(other), rank, range(4))
    assert_same_bits(at_end, other)


def test_after_the_end_distributed_optimizer_averages_again(rank):
    model = make_model()
    optimizer = wrapped(model)
    for _ in range(2):
        with hvd.LocalSGD(model, optimizer, sync_every=3, warmup_steps=1):
            train(model, optimizer, rank, range(3))
        train(model, optimizer, rank, range(3, 5))
        assert_replicas_identical(model)


def test_a_warmup_may_not_end(rank):
    model, other = make_model(), make_model()
    optimizer = wrapped(model)
    with hvd.DiLoCo(model, optimizer, sync_every=3, warmup_steps=1000):
        train(model, optimizer, rank, range(2))
    del optimizer
    new_session()
    train(other, wrapped(other), rank, range(2))
    assert_same_bits(model, other)


def test_momentum_that_a_codec_took_is_the_optimizers_again(rank, several):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression="dgc(ratio=0.1)")
    found = []
    with hvd.LocalSGD(model, optimizer, sync_every=2, warmup_steps=2):
        for number in range(4):
            found.append(optimizer.param_groups[0]["momentum"])
            train(model, optimizer, rank, [number])
    assert [*found, optimizer.param_groups[0]["momentum"]] == [0, 0, 0.9, 0.9, 0]


def test_adasum_is_refused(several):
    model = make_model()
    with pytest.raises(InvalidArgumentError, match="Adasum"):
        hvd.LocalSGD(model, wrapped(model, op=hvd.Adasum), sync_every=2, warmup_steps=2)


def test_two_levels(rank, size):
    """Each step in pairs, and between these every three steps. The last rank of an odd number is a host of its own."""
    if size < 3:
        pytest.skip("two hosts have three ranks at least")
    hosts = [hvd.ProcessSet([0, 1]), hvd.ProcessSet(list(range(2, size)))]
    across = hvd.ProcessSet([0, 2])
    new_session(process_sets=[*(host for host in hosts if host.ranks and len(host.ranks) > 1), across])
    model = make_model()
    mine = hosts[0] if rank < 2 else hosts[1]
    distributed = wrapped(model, process_set=mine) if mine.size() else sgd(model)
    if across.included():
        with hvd.LocalSGD(model, distributed, sync_every=3, process_set=across):
            train(model, distributed, rank, range(6))
        rows = hvd.allgather(model[0].weight.detach()[None], process_set=across)
        assert torch.equal(rows[0], rows[1])
    else:
        train(model, distributed, rank, range(6))
        assert not torch.equal(model[0].weight, make_model()[0].weight)


# --- sharded models ---------------------------------------------------------------------------------------------------


def sharded(size, shape):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(
        "cpu", (size, 1) if shape == "replicas" else (1, size), mesh_dim_names=("replicas", "parts")
    )
    model = make_model()
    fully_shard(model[0], mesh=mesh["parts"])
    fully_shard(model, mesh=mesh["parts"])
    return model, sgd(model)


def test_fully_shard_computes_with_what_was_averaged(gloo, rank, size):
    """It keeps what it has gathered for an evaluation."""
    model, optimizer = sharded(size, "replicas")
    local = hvd.LocalSGD(model, optimizer, sync_every=3)
    inputs, _ = batch_of(9, 0)
    with local:
        train(model, optimizer, rank, range(4))
        own = [parameter.to_local().detach().clone() for parameter in optimizer.param_groups[0]["params"]]
        with local.global_parameters(), torch.no_grad():
            assert_same_everywhere(model(inputs))
        with torch.no_grad():
            outputs = model(inputs)
            plain = make_model()
            for parameter, values in zip(plain.parameters(), own, strict=True):
                parameter.copy_(values)
            torch.testing.assert_close(outputs, plain(inputs))
        local.sync()
        with torch.no_grad():
            assert_same_everywhere(model(inputs))


def test_ranks_with_other_shards_are_refused(gloo, size, several):
    model, optimizer = sharded(size, "parts")
    with pytest.raises(MismatchError, match=rf"trains 0.weight\[\d of {size}\], which rank \d does not"):
        hvd.LocalSGD(model, optimizer, sync_every=3)
