"""Adaptors side by side: what importing one brings along, and that several share one world."""

import subprocess
import sys

import numpy as np
import pytest

from support.bindings import binding_of, is_there

PACKAGES = ("jax", "keras", "mxnet", "tensorflow", "torch")
BRINGS = {"numpy": set(), "torch": {"torch"}, "tensorflow": {"tensorflow"}, "mxnet": {"mxnet"}, "jax": {"jax"}}
BRINGS["tensorflow"].add("keras")  # TensorFlow imports it by itself


@pytest.mark.parametrize("name", BRINGS)
def test_an_adaptor_imports_its_own_framework_alone(name, rank):
    if not is_there(name):
        pytest.skip(f"{name} is not installed")
    if rank > 0:
        return  # rank 0 looks, and meets the others
    code = f"import sys, casync.{name}; print(*(set({PACKAGES}) & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == BRINGS[name]


def test_all_that_are_there_share_one_world(rank, size):
    there = [name for name in ("numpy", "torch", "tensorflow", "mxnet", "jax") if is_there(name)]
    for name in there:
        binding = binding_of(name)
        assert (binding.hvd.rank(), binding.hvd.size()) == (rank, size)
        binding.assert_equal(
            binding.hvd.allreduce(binding.full(5, rank), name="shared", op=binding.hvd.Sum),
            np.full(5, sum(range(size)), np.float32),
        )


@pytest.mark.usefixtures("several")
def test_ranks_that_use_different_frameworks_meet(rank, size):
    there = [name for name in ("numpy", "torch", "tensorflow", "mxnet", "jax") if is_there(name)]
    binding = binding_of(there[rank % len(there)])
    result = binding.hvd.allreduce(binding.full((3, 4), rank), name="met", op=binding.hvd.Sum)
    binding.assert_filled(result, (3, 4), sum(range(size)))
