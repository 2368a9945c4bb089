"""A plain `python train.py`: every operation works, MPI is not started, wrong arguments are found at the call."""

import sys
import warnings

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.usefixtures("world")


def test_ranks():
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert hvd.global_process_set.ranks == [0] and hvd.global_process_set.included()


def test_mpi_is_not_loaded():
    hvd.allreduce(torch.ones(3))
    assert "casync.transport.mpi" not in sys.modules and "casync._mpi" not in sys.modules
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert "libmpi" not in maps.read()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
def test_reduction_of_one_is_the_identity(op):
    for tensor in (torch.randn(7, 3), torch.randn(100_000), torch.arange(10), torch.tensor(4.0), torch.empty(0)):
        assert torch.equal(hvd.allreduce(tensor, op=op), tensor)


def test_gather_broadcast_objects():
    tensor = torch.arange(6).reshape(2, 3)
    assert torch.equal(hvd.allgather(tensor), tensor) and torch.equal(hvd.broadcast(tensor, 0), tensor)
    assert hvd.allgather_object("x") == ["x"] and hvd.broadcast_object({1: 2}) == {1: 2}
    hvd.barrier()
    assert hvd.counters()["sent_bytes"] == 0


def test_op_and_average():
    tensor = torch.ones(3)
    with pytest.raises(ValueError, match="The op parameter supersedes average. Please provide only one of them."):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.warns(DeprecationWarning, match="average"):
        hvd.allreduce(tensor, average=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(tensor)
    with pytest.raises(ValueError, match="op=17 is not one of Average, Sum"):
        hvd.allreduce(tensor, op=17)


def test_adasum_of_one_is_the_tensor():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.linspace(-3, 3, 5000).to(dtype)
        assert torch.equal(hvd.allreduce(tensor, op=hvd.Adasum), tensor)
    with pytest.raises(ValueError, match="op Adasum takes float32, float64, float16 and bfloat16, not int64"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum)


def test_what_cannot_be_synchronised_is_refused_by_name():
    with pytest.raises(hvd.NotAvailableError, match="complex64"):
        hvd.allreduce(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(hvd.NotAvailableError, match="sparse"):
        hvd.allreduce(torch.eye(3).to_sparse())
    with pytest.raises(hvd.NotAvailableError, match="meta"):
        hvd.allreduce(torch.empty(3, device="meta"))
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="list"):
        hvd.allreduce([1.0])
    with pytest.raises(ValueError, match="reshape"):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="'odd' is not a ProcessSet"):
        hvd.allreduce(torch.ones(3), process_set="odd")


@pytest.mark.parametrize(("device", "name"), [("xpu", "xpu"), ("mps", "mps"), ("cuda", "ROCm")])
def test_devices_that_are_not_nvidias_are_refused_by_name(device, name, monkeypatch):
    """On tensors without memory, which torch makes for its compiler: they need no such device."""
    monkeypatch.setattr(torch.version, "hip", "6.3" if name == "ROCm" else None)
    with FakeTensorMode():
        tensor = torch.ones(3, device=device)
    for operation in (hvd.allreduce, hvd.allgather, hvd.allreduce_):
        with pytest.raises(hvd.NotAvailableError, match=rf"a tensor on {device}:0 \({name}\).*call .cpu\(\)"):
            operation(tensor)


@pytest.mark.parametrize("root", [-1, 1])
def test_invalid_root(root):
    for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_object):
        with pytest.raises(ValueError, match=f"invalid root rank {root}"):
            call(torch.ones(3), root)


@pytest.mark.parametrize(("arguments", "text"), [
    ({"compression": "twobit"}, "twobit"),
    ({"compression": "onebit(x=1)"}, "onebit"),
    ({"compression": 3}, "not a codec"),
    ({"topology": "star"}, "star"),
    ({"compression": "onebit", "op": hvd.Max}, "Max"),
])  # fmt: skip
def test_bad_codec_or_topology(arguments, text):
    with pytest.raises(ValueError, match=text):
        hvd.allreduce(torch.ones(5000), **arguments)


def test_integers_with_a_codec_are_refused_by_name():
    with pytest.raises(ValueError, match=r"counts.*onebit.*int64"):
        hvd.allreduce(torch.ones(5000, dtype=torch.int64), compression="onebit", name="counts")


def test_handles():
    handle = hvd.allreduce_async(torch.ones(3))
    assert hvd.synchronize(handle) is not None
    assert hvd.synchronize(handle) is None and hvd.synchronize(12345) is None
    with pytest.raises(ValueError, match="handle"):
        hvd.poll(handle)


@pytest.mark.parametrize("submit", [hvd.allreduce_async, hvd.allgather_async, hvd.reducescatter_async])
def test_poll_tells_of_what_was_done_before_it(submit):
    """Alone, too, an asynchronous operation is not done in its submit."""
    handles, at_once = [], []
    for numel in (17, 17**2, 17**3) * 5:
        handles.append(submit(torch.ones(numel)))
        at_once.append(hvd.poll(handles[-1]))
    assert not all(at_once) and all(hvd.poll(handle) for handle in handles)


def test_unnamed_operations_do_not_pile_up():
    from casync.session import default

    for _ in range(5000):
        hvd.allreduce(torch.ones(1))
    assert len(default.session()._registrations) <= 4096


# --- DistributedOptimizer --------------------------------------------------------------------------------------------


def wrap(model, **arguments):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **arguments)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"named_parameters": [("a", 1), ("a", 2)]}, ValueError, "must be unique. Found duplicates: a"),
    ({"named_parameters": [1, 2]}, ValueError, "sequence of tuples"),
    ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step must be > 0"),
    ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, ValueError, "not supported with op != Average"),
    ({"groups": -1}, ValueError, "groups should be a non-negative integer"),
    ({"groups": [["weight"]]}, ValueError, "groups must consist of torch.Tensor"),
    ({"process_set": 1}, ValueError, "process_set=1 is not a ProcessSet"),
    ({"compression": object()}, ValueError, "not a codec"),
    ({"compression": "twobit"}, ValueError, "twobit"),
    ({"compression": {"*.bias": "none", "*": "twobit"}}, ValueError, "twobit"),
    ({"compression": {"weight": "auto(onebit, twobit)", "*": "none"}}, ValueError, "twobit"),
    ({"compression": {"*": None}}, ValueError, "None is not a codec"),
    ({"compression": {"*": {"*": "none"}}}, ValueError, "not a codec"),
    ({"compression": {"*": "no_such_file.cll"}}, ValueError, "no_such_file.cll cannot be read"),
    ({"compression": {"*": "none", "*.bias": "onebit"}}, ValueError, "put '\\*' last"),
    ({"compression": {}}, ValueError, "has no rule"),
    ({"compression": {"*.bias": "none"}}, ValueError, "parameter noname.0.0 matches no rule"),
])  # fmt: skip
def test_arguments_of_the_optimizer(arguments, error, text):
    with pytest.raises(error, match=text):
        wrap(nn.Linear(2, 2), **arguments)


def test_names_are_not_compared_each_with_each():
    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str(self) == str(other)

        __hash__ = str.__hash__

    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(300)]
    named = [(Name(f"p{i}"), parameter) for i, parameter in enumerate(parameters)]
    hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named)
    assert Name.compared < 10 * len(named)


def test_parameters_without_a_name():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="one or more model parameters were not named"):
        wrap(model, named_parameters=[("weight", model.weight)])


def test_equals_plain_torch():
    torch.manual_seed(0)
    models = [nn.Linear(5, 5) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    plain = torch.optim.SGD(models[0].parameters(), lr=0.1, momentum=0.9)
    wrapped = wrap(models[1], named_parameters=models[1].named_parameters(), compression="onebit")
    for model, optimizer in zip(models, (plain, wrapped), strict=True):
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((2, 5), float(step))).sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert plain.state_dict()["state"].keys() == wrapped.state_dict()["state"].keys()
    wrapped.load_state_dict(wrapped.state_dict())


def test_state_from_before_wrapping_is_kept():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert wrapped.state[model.weight]["step"] == 1 and wrapped.param_groups[0]["lr"] == 0.5
    assert type(wrapped).__name__ == "Adam" and isinstance(wrapped, torch.optim.Adam)
    assert type(wrapped).__module__ == hvd.DistributedOptimizer.__module__


def test_every_optimizer_of_torch_can_be_wrapped():
    for cls in torch.optim.Optimizer.__subclasses__():
        if cls.__module__.startswith("torch.optim.") and not cls.__name__.startswith("_"):
            parameter = nn.Parameter(torch.ones(4, 4))
            try:
                optimizer = cls([parameter], lr=0.01)
            except TypeError:
                continue
            wrapped = hvd.DistributedOptimizer(optimizer)
            assert wrapped.param_groups[0]["lr"] == 0.01 and repr(wrapped)
