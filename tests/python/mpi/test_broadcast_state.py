"""broadcast_parameters and broadcast_optimizer_state."""

import copy

import casync.torch as hvd
import pytest
import torch

import casync
from casync.session import default
from support.replicas import assert_same_everywhere


def test_broadcast_parameters(rank, size):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(4, 300))
    for params in (model.state_dict(), model.named_parameters()):
        hvd.broadcast_parameters(params, root_rank=size - 1)
    for parameter in model.state_dict().values():
        assert_same_everywhere(parameter)


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, centered=True),
    lambda p: torch.optim.Adagrad(p),
], ids=["SGD", "Adam", "RMSprop", "Adagrad"])  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_broadcast_optimizer_state(make, wrapped, rank, size):
    """Only the root has trained; afterwards all continue alike."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(10, 5)
    optimizer = make(model.parameters())
    if rank == size - 1:
        model(torch.randn(3, 10)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.0375
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    assert optimizer.param_groups[0]["lr"] == 0.0375
    optimizer.zero_grad()
    model(torch.ones(3, 10)).sum().backward()
    optimizer.step()
    states = hvd.allgather_object((optimizer.state_dict(), model.state_dict()))
    assert all(str(state) == str(states[0]) for state in states)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_new_optimizers_state_broadcast_leaves_gradients_of_zero(wrapped):
    """As Horovod leaves them, where it steps the optimizer once; the parameters stay what they were."""
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    new, reached = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    reached.grad = torch.full((3,), 2.0)
    optimizer = torch.optim.SGD([frozen, new, reached], lr=0.1, momentum=0.9, weight_decay=0.5)
    if wrapped:
        names = [("frozen", frozen), ("new", new), ("reached", reached)]
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert frozen.grad is None and torch.equal(new.grad, torch.zeros(3)) and not new.grad.requires_grad
    assert torch.equal(reached.grad, torch.full((3,), 2.0)) and torch.equal(new.data, torch.ones(3))


def test_a_new_sparse_adams_gradients_are_sparse():
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert table.weight.grad.is_sparse
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


def test_lbfgs_state_is_refused():
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))]), 0)


# --- what fails leaves nothing behind ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("several")
def test_after_a_tensor_that_ranks_disagree_about_its_names_can_be_used_again(rank, tmp_path):
    good = {f"layer{i}": torch.full((4,), float(rank)) for i in range(4)}
    for _ in range(2):
        with pytest.raises(hvd.MismatchError, match="layer1"):
            hvd.broadcast_parameters({**good, "layer1": torch.zeros(5 + rank)}, 0)
        assert not default.session().has_outstanding
        hvd.broadcast_parameters(good, 0)
        assert all(torch.equal(tensor, torch.zeros(4)) for tensor in good.values())
        good = {name: tensor + rank for name, tensor in good.items()}
    casync.save_state(tmp_path)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("bad", ["quantised", "sparse", "meta"])
def test_after_a_tensor_that_cannot_be_sent_its_names_can_be_used_again(rank, bad):
    made = {
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
    }[bad]
    good = {f"{bad}{i}": torch.full((4,), float(rank)) for i in range(4)}
    with pytest.raises(hvd.NotAvailableError, match=f"tensor {bad}2: ") as caught:
        hvd.broadcast_parameters({**good, f"{bad}2": made}, 0)
    assert caught.value.tensor == f"{bad}2"
    assert not default.session().has_outstanding
    hvd.broadcast_parameters(good, 0)
    assert all(torch.equal(tensor, torch.zeros(4)) for tensor in good.values())


@pytest.mark.parametrize("dtype", [
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.bool,
])  # fmt: skip
def test_tensors_of_any_dtype(rank, dtype):
    made = (torch.arange(6.0).reshape(2, 3) * (rank + 1)).to(dtype)
    state = {"plain": made.clone(), "transposed": made.clone().t(), "number": made[1, 2].clone(), "none": made[:0]}
    hvd.broadcast_parameters(state, 0)
    expected = torch.arange(6.0).reshape(2, 3).to(dtype).to(torch.complex128)
    for name, values in (("plain", expected), ("transposed", expected.t()), ("number", expected[1, 2])):
        torch.testing.assert_close(state[name].to(torch.complex128), values)


def test_expanded_tensors(rank):
    state = {"all": torch.tensor([[rank + 1.0]]).expand(4, 4), "rows": (torch.arange(3.0) * (rank + 1)).expand(2, 3)}
    hvd.broadcast_parameters(state, 0)
    assert torch.equal(state["all"], torch.ones(4, 4)) and state["all"].stride() == (0, 0)
    assert torch.equal(state["rows"], torch.arange(3.0).expand(2, 3)) and state["rows"].stride() == (0, 1)


@pytest.mark.usefixtures("several")
def test_an_expanded_tensor_cannot_take_other_values(rank):
    mine = torch.arange(4.0) if rank == 0 else torch.zeros(1).expand(4)
    if rank == 0:
        hvd.broadcast_parameters({"b": mine}, 0)
    else:
        with pytest.raises(ValueError, match=r"shape \(4,\) that was expanded .* dimension 0"):
            hvd.broadcast_parameters({"b": mine}, 0)
    assert not default.session().has_outstanding


def test_a_refused_tensor_is_named_by_every_operation():
    bad = torch.zeros(3, dtype=torch.complex64)
    calls = {
        "allreduce": lambda: hvd.allreduce(bad, name="odd"),
        "allreduce_": lambda: hvd.allreduce_(bad, name="odd"),
        "allgather": lambda: hvd.allgather(bad, name="odd"),
        "broadcast": lambda: hvd.broadcast(bad, 0, name="odd"),
        "alltoall": lambda: hvd.alltoall(bad, name="odd"),
        "reducescatter": lambda: hvd.reducescatter(bad, name="odd"),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([torch.ones(3), bad], name="odd"),
        "grouped_reducescatter": lambda: hvd.grouped_reducescatter([torch.ones(3), bad], name="odd"),
    }
    for call in calls.values():
        with pytest.raises(hvd.NotAvailableError, match=r"^tensor \S*odd\S*: dtype torch.complex64") as caught:
            call()
        assert "odd" in caught.value.tensor
    assert not default.session().has_outstanding


@pytest.mark.usefixtures("several")
def test_the_gradient_of_a_parameter_that_cannot_be_reduced_is_named():
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float8_e4m3fn))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("layer.weight", weight)])
    with pytest.raises(hvd.NotAvailableError, match=r"layer\.weight.*float8_e4m3fn"):
        weight.float().sum().backward()
        optimizer.step()


def adam(*sizes, kind=torch.optim.Adam, **settings):
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
    optimizer = kind(parameters, lr=0.1, **settings)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    return optimizer


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(("make", "text"), [
    (lambda rank: adam(2, 3 + rank),
     r"rank 1 has shape \(4,\) of parameter 1 of parameter group 0 where rank 0 has \(3,\)"),
    (lambda rank: adam(*[2] * (2 + rank)), "rank 1 has 3 parameters in parameter group 0 where rank 0 has 2"),
    (lambda rank: adam(2) if rank == 0 else adam(2, kind=torch.optim.SGD),
     "an optimizer SGD with dampening, momentum, nesterov in parameter group 0 where rank 0 has Adam without"),
])  # fmt: skip
def test_an_optimizer_of_another_model_is_an_error_on_every_rank(rank, make, text):
    other = make(rank)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(hvd.MismatchError, match=text) as caught:
        hvd.broadcast_optimizer_state(other, 0)
    assert (caught.value.rank, caught.value.peer, caught.value.kind) == (rank, 1, "mismatch")
    assert str(before) == str(other.state_dict())
    same = adam(2, 3, betas=(0.5 + rank / 10, 0.9))
    hvd.broadcast_optimizer_state(same, 0)
    assert same.param_groups[0]["betas"] == (0.5, 0.9)


@pytest.mark.usefixtures("several")
def test_the_parameter_of_a_distributed_optimizer_is_named(rank):
    model = torch.nn.Linear(3, 2 + (rank == 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with pytest.raises(hvd.MismatchError, match=r"shape \(3, 3\) of parameter weight where rank 0 has \(2, 3\)"):
        hvd.broadcast_optimizer_state(optimizer, 0)
