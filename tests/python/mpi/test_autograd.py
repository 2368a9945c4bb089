"""Gradients of the blocking operations, with Horovod's conventions."""

import casync.torch as hvd
import pytest
import torch


def test_allreduce(rank, size):
    for op, expected in ((hvd.Average, (size - 1) / 2), (hvd.Sum, sum(range(size)))):
        tensor = torch.ones(3, 4, requires_grad=True)
        result = hvd.allreduce(tensor, op=op)
        assert result.requires_grad
        result.backward(torch.full((3, 4), float(rank)))
        assert torch.allclose(tensor.grad, torch.full((3, 4), float(expected)))


def test_allreduce_of_max_is_refused():
    with pytest.raises(hvd.NotAvailableError, match="detach"):
        hvd.allreduce(torch.ones(3, requires_grad=True), op=hvd.Max)


def test_grouped_allreduce(rank, size):
    tensors = [torch.ones(n, requires_grad=True) for n in (2, 3)]
    sum(result.sum() for result in hvd.grouped_allreduce(tensors, op=hvd.Sum)).backward()
    assert all(torch.equal(tensor.grad, torch.full_like(tensor, size)) for tensor in tensors)


def test_allgather(rank, size):
    tensor = torch.ones(rank + 1, 2, requires_grad=True)
    gathered = hvd.allgather(tensor)
    gathered.backward(torch.cat([torch.full((r + 1, 2), float(r)) for r in range(size)]))
    assert torch.equal(tensor.grad, torch.full((rank + 1, 2), float(rank)))


def test_broadcast(rank, size):
    tensor = torch.ones(5, requires_grad=True)
    hvd.broadcast(tensor, size - 1).sum().backward()
    assert torch.equal(tensor.grad, torch.full((5,), 1.0 if rank == size - 1 else 0.0))


def test_no_gradient_is_asked_for():
    with torch.no_grad():
        assert not hvd.allreduce(torch.ones(3, requires_grad=True)).requires_grad


def test_horovods_functions_take_horovods_arguments(rank, size):
    """And may return more gradients than there were arguments, where those are None."""
    ops = hvd.mpi_ops
    world = hvd.global_process_set
    tensor = torch.ones(size, 2, requires_grad=True)
    for result, factor in (
        (ops.HorovodAllreduce.apply(tensor, None, "sum", hvd.Sum, 1.0, 2.0, world), 2 * size),
        (ops.HorovodAllgather.apply(tensor, "all", world), 1),
        (ops.HorovodBroadcast.apply(tensor, 0, "root", world), rank == 0),
        (ops.HorovodAlltoall.apply(tensor, None, "turn", world)[0], 1),
        (ops.HorovodReducescatter.apply(tensor, "part", hvd.Sum, world, 1.0, 3.0), 3 * size),
    ):
        tensor.grad = None
        result.sum().backward()
        assert type(result.grad_fn).__name__.startswith("Horovod")
        assert torch.equal(tensor.grad, torch.full_like(tensor, float(factor))), result.grad_fn
    grouped = hvd.grouped_allreduce([tensor], op=hvd.Sum)
    assert "HorovodGroupedAllreduce" in str(grouped[0].grad_fn)


# --- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_of_allreduces(rank, size):
    tensors = [torch.rand(n, requires_grad=True) for n in (2, 3)]
    results = hvd.grouped_allreduce([*tensors, torch.arange(4)], op=hvd.Sum)
    assert not results[2].requires_grad
    (results[0].sum() + 2 * results[1].sum()).backward()
    assert torch.equal(tensors[0].grad, torch.full((2,), float(size)))
    assert torch.equal(tensors[1].grad, torch.full((3,), 2.0 * size))
    with pytest.raises(hvd.NotAvailableError, match="detach"):
        hvd.grouped_allreduce(tensors, op=hvd.Max)


def test_an_allgather_with_a_gradient_meets_one_without(rank, size):
    """It is one operation, under one name or number, whether a rank wants gradients or not."""
    for name in ("rows", None):
        tensor = torch.full((rank + 1, 2), float(rank), requires_grad=rank == 0)
        result = hvd.allgather(tensor, name=name)
        assert result.detach()[:, 0].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    assert float(hvd.allgather(torch.ones(1)).sum()) == size


def test_a_group_of_allgathers(rank, size):
    """As of allgather: the mean over ranks of the gradients of this rank's rows."""
    tensors = [torch.rand(rank + n, 2, requires_grad=True) for n in (1, 2)]
    results = hvd.grouped_allgather([*tensors, torch.arange(3)])
    grads = [torch.cat([torch.full((r + n, 2), float(r * n)) for r in range(size)]) for n in (1, 2)]
    torch.autograd.backward(results[:2], grads)
    for n, tensor in zip((1, 2), tensors, strict=True):
        assert torch.equal(tensor.grad, torch.full((rank + n, 2), float(rank * n)))


def test_a_group_of_reducescatters(rank, size):
    tensors = [torch.rand(size * n, requires_grad=True) for n in (1, 2)]
    sum(result.sum() for result in hvd.grouped_reducescatter(tensors, op=hvd.Sum)).backward()
    assert all(torch.equal(tensor.grad, torch.full_like(tensor, size)) for tensor in tensors)


# --- reducescatter and alltoall -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "factor"), [(hvd.Sum, None), (hvd.Average, 1)])
def test_reducescatter(op, factor, rank, size):
    """Horovod's convention: of a sum the gathered gradient times the number of ranks."""
    factor = size if factor is None else factor
    for rows in (4 * size, 4 * size + 1):
        tensor = torch.rand(rows, 3, requires_grad=True)
        result = hvd.reducescatter(tensor, op=op)
        result.backward(torch.full_like(result, rank + 1.0))
        expected = torch.cat([torch.full((rows // size + (r < rows % size), 3), r + 1.0) for r in range(size)])
        assert torch.equal(tensor.grad, expected * factor)


def test_reducescatter_with_factors(size):
    tensor = torch.rand(size, requires_grad=True)
    hvd.reducescatter(tensor, op=hvd.Average, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    assert torch.equal(tensor.grad, torch.full((size,), 1.5))


def dealt(rank, size, dim, dtype=torch.float32):
    """rank + 1 rows for each rank, which hold its number."""
    rows = torch.arange(size).repeat_interleave(rank + 1)
    return rows.reshape(-1, *([1] * (dim - 1))).expand(-1, *([2] * (dim - 1))).to(dtype).contiguous()


@pytest.mark.parametrize("given", [True, False])
def test_alltoall(given, rank, size):
    tensor = dealt(rank, size, 2).requires_grad_()
    output = hvd.alltoall(tensor, [rank + 1] * size)[0] if given else hvd.alltoall(tensor)
    output.backward(torch.full_like(output, rank + 1.0))
    assert torch.equal(tensor.grad, dealt(rank, size, 2) + 1)  # from rank r comes r + 1


def test_rows_that_an_alltoall_leaves_out_have_no_gradient(rank, size):
    tensor = torch.arange(size + 5.0, requires_grad=True)
    output, _ = hvd.alltoall(tensor, [1] * size)
    assert torch.equal(output, torch.full((size,), float(rank)))
    output.sum().backward()
    assert torch.equal(tensor.grad, torch.tensor([1.0] * size + [0.0] * 5))


# --- what else goes with it ---------------------------------------------------------------------------------------


def test_adasum_has_no_gradient():
    with pytest.raises(RuntimeError, match="differentiable for Sum and Average"):
        hvd.allreduce(torch.ones(10, requires_grad=True), op=hvd.Adasum)


def test_a_differentiable_allreduce_takes_a_table_of_codecs(size):
    hvd.allreduce(torch.ones(5000, requires_grad=True), compression={"noname.*": "bf16"}).sum().backward()
    if size > 1:
        assert hvd.plans()["allreduce.noname.0"].codec == "bf16"


# --- second derivatives ---------------------------------------------------------------------------------------------


def scaled(tensor, factor):
    """Whose gradient is `factor` times what it would be."""
    return tensor * factor + (tensor * (1 - factor)).detach()


def parts(of_ranks, r):
    return [torch.chunk(one, len(of_ranks))[r] for one in of_ranks]


# By name: the operation, and what each rank has of it in one process, by the adaptor's conventions.
TWICE = {
    "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum), lambda xs, r: sum(xs)),
    "mean": (lambda x: hvd.allreduce(x, prescale_factor=3.0), lambda xs, r: 3 * sum(xs) / len(xs)),
    "allgather": (hvd.allgather, lambda xs, r: scaled(torch.cat(xs), 1 / len(xs))),
    "broadcast": (lambda x: hvd.broadcast(x, 0), lambda xs, r: scaled(xs[0], 1 / len(xs)) + 0 * sum(xs)),
    "alltoall": (hvd.alltoall, lambda xs, r: torch.cat(parts(xs, r))),
    "reducescatter": (
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
        lambda xs, r: scaled(sum(parts(xs, r)), len(xs)),
    ),
    "grouped allreduce": (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], lambda xs, r: sum(xs)),
    "grouped allgather": (
        lambda x: hvd.grouped_allgather([x])[0],
        lambda xs, r: scaled(torch.cat(xs), 1 / len(xs)),
    ),
    "grouped reducescatter": (
        lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum)[0],
        lambda xs, r: scaled(sum(parts(xs, r)), len(xs)),
    ),
}


@pytest.mark.parametrize("operation", TWICE)
def test_a_gradient_of_gradients(operation, rank, size):
    """As a gradient penalty has it, against one process that has every rank's tensors."""
    run, reference = TWICE[operation]
    torch.manual_seed(0)
    xs = [torch.randn(2 * size, 3, dtype=torch.float64) for _ in range(size)]

    mine = xs[rank].clone().requires_grad_()
    (slope,) = torch.autograd.grad(run(mine.pow(3)).pow(3).sum(), mine, create_graph=True)
    slope.pow(2).sum().backward()

    whole = [x.clone().requires_grad_() for x in xs]
    cubes = [x.pow(3) for x in whole]
    slopes = torch.autograd.grad(sum(reference(cubes, r).pow(3).sum() for r in range(size)), whole, create_graph=True)
    sum(one.pow(2).sum() for one in slopes).backward()
    torch.testing.assert_close(slope, slopes[rank])
    torch.testing.assert_close(mine.grad, whole[rank].grad)


def test_views_that_are_negative_without_being_so_in_memory(size):
    view = torch.tensor([1 + 2j]).conj().imag
    assert view.is_neg() and view.is_contiguous()
    assert hvd.allreduce(view, op=hvd.Sum).item() == -2.0 * size
    assert hvd.allgather(view).tolist() == [-2.0] * size


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_a_transform_of_torch_func_is_refused(transform):
    with pytest.raises(hvd.NotAvailableError, match="within a transform of torch.func"):
        transform(hvd.allreduce)(torch.ones(3, 2))
