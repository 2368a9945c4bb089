"""Arrays of JAX in a job, also of one that uses PyTorch beside it."""

import casync.torch
import numpy as np
import pytest
import torch

pytest.importorskip("jax")
import casync.jax as hvd  # noqa: E402
import jax  # noqa: E402


def test_an_array_that_is_donated_while_an_operation_reads_it(several, rank, size):
    array = jax.device_put(np.full(1 << 20, rank + 1, np.float32)) + 0
    overwrite = jax.jit(lambda x: x * 0 - 7, donate_argnums=0)
    if rank > 0:
        hvd.barrier()
    handle = hvd.allreduce_async(array, op=hvd.Sum, name="donated")
    overwritten = overwrite(array).block_until_ready()
    del array
    if rank == 0:
        hvd.barrier()  # before it no other rank submits, so nothing was read yet
    assert np.array_equal(hvd.synchronize(handle), np.full(1 << 20, size * (size + 1) / 2))
    assert (overwritten == -7).all()


def test_an_array_that_is_deleted_while_an_operation_reads_it(several, rank, size):
    array = jax.device_put(np.full(1 << 20, rank + 1, np.float32)) + 0
    if rank > 0:
        hvd.barrier()
    handle = hvd.allreduce_async(array, op=hvd.Sum, name="deleted")
    array.delete()
    others = [jax.numpy.full(1 << 20, i).block_until_ready() for i in range(4)]
    if rank == 0:
        hvd.barrier()
    assert np.array_equal(hvd.synchronize(handle), np.full(1 << 20, size * (size + 1) / 2))
    assert len(others) == 4


def test_what_is_still_being_computed_is_waited_for(rank, size):
    factor = jax.numpy.eye(600) * (rank + 1)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ jax.numpy.eye(600), x))
    slow(factor).block_until_ready()
    assert np.array_equal(hvd.allreduce(slow(factor), op=hvd.Sum), np.eye(600) * size * (size + 1) / 2)


def test_two_adaptors_share_one_world(rank, size):
    assert (hvd.rank(), hvd.size()) == (casync.torch.rank(), casync.torch.size()) == (rank, size)
    ours = hvd.allreduce_async(jax.numpy.full(5, rank, "bfloat16"), op=hvd.Sum, name="of jax")
    theirs = casync.torch.allreduce_async(torch.full((5,), float(rank)), op=hvd.Sum, name="of torch")
    total = sum(range(size))
    assert casync.torch.synchronize(theirs).tolist() == hvd.synchronize(ours).tolist() == [total] * 5


def test_gradients_of_a_step_that_jit_makes(rng, rank, size):
    """As in the documents: what is traced returns gradients, which are reduced outside of it."""
    samples, wanted = rng.normal(size=(size, 8, 3)).astype("f"), rng.normal(size=(size, 8)).astype("f")

    def loss(weights, x, y):
        return ((x @ weights["w"] + weights["b"] - y) ** 2).mean()

    weights = {"w": jax.numpy.ones(3), "b": jax.numpy.zeros(())}
    gradients = jax.jit(jax.grad(loss))(weights, samples[rank], wanted[rank])
    leaves, tree = jax.tree.flatten(gradients)
    reduced = jax.tree.unflatten(tree, hvd.grouped_allreduce(leaves))
    whole = jax.grad(loss)(weights, samples.reshape(-1, 3), wanted.reshape(-1))
    for name, gradient in whole.items():
        np.testing.assert_allclose(reduced[name], gradient, rtol=1e-5, atol=1e-6)
