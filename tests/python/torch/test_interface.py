"""The part of Horovod's interface that is there, name by name, default by default."""

import inspect
import subprocess
import sys

import casync.torch as hvd
import pytest
import torch

NONE, PS = hvd.Compression.none, hvd.global_process_set
SCALES = {"prescale_factor": 1.0, "postscale_factor": 1.0}
REDUCE = {"average": None, "name": None}
REQUIRED = inspect.Parameter.empty

# name -> positional parameters with their defaults, in Horovod's order.
SIGNATURES = {
    "allreduce": {"tensor": REQUIRED, **REDUCE, "compression": NONE, "op": None, **SCALES, "process_set": PS},
    "allreduce_": {"tensor": REQUIRED, **REDUCE, "op": None, **SCALES, "process_set": PS},
    "allreduce_async": {"tensor": REQUIRED, **REDUCE, "op": None, **SCALES, "process_set": PS},
    "allreduce_async_": {"tensor": REQUIRED, **REDUCE, "op": None, **SCALES, "process_set": PS},
    "grouped_allreduce": {"tensors": REQUIRED, **REDUCE, "compression": NONE, "op": None, **SCALES, "process_set": PS},
    "grouped_allreduce_": {"tensors": REQUIRED, **REDUCE, "op": None, **SCALES, "process_set": PS},
    "allgather": {"tensor": REQUIRED, "name": None, "process_set": PS},
    "allgather_async": {"tensor": REQUIRED, "name": None, "process_set": PS},
    "broadcast": {"tensor": REQUIRED, "root_rank": REQUIRED, "name": None, "process_set": PS},
    "broadcast_": {"tensor": REQUIRED, "root_rank": REQUIRED, "name": None, "process_set": PS},
    "broadcast_async": {"tensor": REQUIRED, "root_rank": REQUIRED, "name": None, "process_set": PS},
    "broadcast_async_": {"tensor": REQUIRED, "root_rank": REQUIRED, "name": None, "process_set": PS},
    "barrier": {"process_set": PS},
    "poll": {"handle": REQUIRED},
    "synchronize": {"handle": REQUIRED},
    "broadcast_parameters": {"params": REQUIRED, "root_rank": REQUIRED},
    "broadcast_optimizer_state": {"optimizer": REQUIRED, "root_rank": REQUIRED, "model": None},
    "broadcast_object": {"obj": REQUIRED, "root_rank": 0, "name": None, "process_set": PS},
    "allgather_object": {"obj": REQUIRED, "name": None},
    "init": {"comm": None, "process_sets": None},
    "DistributedOptimizer": {
        "optimizer": REQUIRED,
        "named_parameters": None,
        "compression": NONE,
        "backward_passes_per_step": 1,
        "op": hvd.Average,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
        "sparse_as_dense": False,
        "process_set": PS,
    },
    **{name: {} for name in ("shutdown", "is_initialized", "rank", "size", "local_rank", "local_size")},
    **{name: {} for name in ("cross_rank", "cross_size", "is_homogeneous")},
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert positional == SIGNATURES[name] and list(positional) == list(SIGNATURES[name])
    assert inspect.getdoc(getattr(hvd, name))


def test_constants_have_horovods_numbers():
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


def test_all_is_what_is_there():
    assert sorted(hvd.__all__, key=lambda name: (name.lower(), name)) and len(set(hvd.__all__)) == len(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


@pytest.mark.parametrize("name", ["alltoall", "join", "elastic"])
def test_what_is_not_there_says_so(name):
    with pytest.raises(AttributeError, match=f"{name} is part of Horovod's interface and not there yet"):
        getattr(hvd, name)
    assert not hasattr(hvd, name)


def test_error_types():
    for error in (hvd.MismatchError, hvd.PeerFailureError, hvd.AbortedError, hvd.StallError, hvd.CorruptPayloadError):
        assert issubclass(error, hvd.HorovodInternalError) and issubclass(error, RuntimeError)
        assert "Remedy" in inspect.getdoc(error)
    assert issubclass(hvd.InvalidArgumentError, ValueError)
    assert not issubclass(hvd.InvalidArgumentError, hvd.HorovodInternalError)


def test_import_is_cheap_and_starts_nothing(tmp_path):
    """Median of processor time, so that other load on the machine does not count."""
    program = (
        "import torch, time; start = time.process_time(); import casync.torch; spent = time.process_time() - start; "
        "import sys, threading; print(spent, threading.active_count(), 'casync._core' in sys.modules)"
    )
    outputs = [
        # Elsewhere: in the checkout, its uninstalled casync/ would be found first.
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert sorted(float(output.split()[0]) for output in outputs)[1] < 0.2
    assert all(output.split()[1:] == ["1", "False"] for output in outputs)


# --- Compression -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "dtype"), [
    (hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16), (NONE, torch.float32),
])  # fmt: skip
def test_compress_and_decompress_as_in_horovod(codec, dtype):
    values = torch.rand(10)
    compressed, context = codec.compress(values)
    assert compressed.dtype == dtype
    restored = codec.decompress(compressed, context)
    assert restored.dtype == torch.float32
    torch.testing.assert_close(restored, values, rtol=1e-2, atol=1e-2)
    integers = torch.arange(5)
    assert codec.compress(integers)[0] is integers


def test_specs_of_codecs():
    assert str(hvd.Compression.onebit()) == "onebit"
    assert str(hvd.Compression.terngrad()) == "terngrad(bits=2)"
    assert str(hvd.Compression.terngrad(bits=8)) == "terngrad(bits=8)"
