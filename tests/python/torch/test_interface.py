"""Horovod's interface for PyTorch, name by name, default by default: what is there, and what is known to be missing."""

import importlib
import inspect
import subprocess
import sys

import casync.torch as hvd
import pytest
import torch

NONE, PS = hvd.Compression.none, hvd.global_process_set
SCALES = {"prescale_factor": 1.0, "postscale_factor": 1.0}
REQUIRED = inspect.Parameter.empty
TENSOR, TENSORS, NAME = {"tensor": REQUIRED}, {"tensors": REQUIRED}, {"name": None}
COMPRESSION, SET = {"compression": NONE}, {"process_set": PS}
REDUCE = {"average": None, **NAME, "op": None, **SCALES, **SET}
REDUCE_BLOCKING = {"average": None, **NAME, **COMPRESSION, "op": None, **SCALES, **SET}
ROOT = {**TENSOR, "root_rank": REQUIRED, **NAME, **SET}
EXCHANGE = {**TENSOR, "splits": None, **NAME, **SET}
SCATTER = {"op": hvd.Average, **SET, **SCALES}

# Every public function and class: name -> positional parameters with their defaults, in Horovod's order.
SIGNATURES = {
    "allreduce": {**TENSOR, **REDUCE_BLOCKING},
    **{name: {**TENSOR, **REDUCE} for name in ("allreduce_", "allreduce_async", "allreduce_async_")},
    "grouped_allreduce": {**TENSORS, **REDUCE_BLOCKING},
    **{f"grouped_allreduce{suffix}": {**TENSORS, **REDUCE} for suffix in ("_", "_async", "_async_")},
    "sparse_allreduce_async": {**TENSOR, "name": REQUIRED, "op": REQUIRED, **SET},
    **{name: {**TENSOR, **NAME, **SET} for name in ("allgather", "allgather_async")},
    **{name: {**TENSORS, **NAME, **SET} for name in ("grouped_allgather", "grouped_allgather_async")},
    **{f"broadcast{suffix}": ROOT for suffix in ("", "_", "_async", "_async_")},
    **{name: EXCHANGE for name in ("alltoall", "alltoall_async")},
    "reducescatter": {**TENSOR, **NAME, **COMPRESSION, **SCATTER},
    "reducescatter_async": {**TENSOR, **NAME, **SCATTER},
    "grouped_reducescatter": {**TENSORS, **NAME, **COMPRESSION, **SCATTER},
    "grouped_reducescatter_async": {**TENSORS, **NAME, **SCATTER},
    "join": {"device": -1},
    "barrier": SET,
    **{name: {"handle": REQUIRED} for name in ("poll", "synchronize")},
    "broadcast_parameters": {"params": REQUIRED, "root_rank": REQUIRED},
    "broadcast_optimizer_state": {"optimizer": REQUIRED, "root_rank": REQUIRED, "model": None},
    "broadcast_object": {"obj": REQUIRED, "root_rank": 0, **NAME, **SET},
    "allgather_object": {"obj": REQUIRED, **NAME},
    "DistributedOptimizer": {
        "optimizer": REQUIRED,
        "named_parameters": None,
        **COMPRESSION,
        "backward_passes_per_step": 1,
        "op": hvd.Average,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
        "sparse_as_dense": False,
        **SET,
    },
    "SyncBatchNorm": {
        "num_features": REQUIRED,
        "eps": 1e-5,
        "momentum": 0.1,
        "affine": True,
        "track_running_stats": True,
    },
    "init": {"comm": None, "process_sets": None},
    **{name: {} for name in ("shutdown", "is_initialized", "is_homogeneous")},
    **{f"{scope}{name}": {} for scope in ("", "local_", "cross_") for name in ("rank", "size")},
    "start_timeline": {"file_path": REQUIRED, "mark_cycles": False},
    "stop_timeline": {},
    **{f"{name}_built": {} for name in ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm")},
    **{name: {} for name in ("mpi_enabled", "gloo_enabled", "mpi_threads_supported")},
    "add_process_set": {"process_set": REQUIRED},
    "remove_process_set": {"process_set": REQUIRED},
    "ProcessSet": {"ranks_or_comm": REQUIRED},
}
OTHERS = {
    "Average", "Sum", "Adasum", "Min", "Max", "Product", "Compression", "HorovodInternalError", "global_process_set",
    "elastic", "mpi_ops",
}  # fmt: skip
# What Horovod has outside `mpi_ops`, and what it has there and not here.
NOT_IN_MPI_OPS = {
    "DistributedOptimizer", "SyncBatchNorm", "allgather_object", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "elastic", "mpi_ops",
}  # fmt: skip
ONLY_IN_MPI_OPS = {"_basics"} | {
    f"Horovod{name}"
    for name in (
        "Allgather",
        "Allreduce",
        "Alltoall",
        "Broadcast",
        "GroupedAllgather",
        "GroupedAllreduce",
        "GroupedReducescatter",
        "Reducescatter",
    )  # fmt: skip
}

MISSING = {"elastic"}
"""Take a name out when it is there."""


def test_what_is_missing_is_known():
    assert {name for name in SIGNATURES.keys() | OTHERS if not hasattr(hvd, name)} == MISSING
    assert hvd._LATER == MISSING


def test_everything_else_is_ours():
    """A name that Horovod does not have is meant, and not one that this table has forgotten."""
    ours = {name for name in hvd.__all__ if name not in SIGNATURES.keys() | OTHERS}
    errors = {name for name in ours if name.endswith("Error")}
    relaxed = {"DiLoCo", "LocalSGD", "PeriodicModelAverager"}
    assert hvd.Options is hvd.BackendOptions
    options = {"BackendOptions", "Options"}
    assert ours - errors - relaxed - options == {
        "CompressionMonitor", "counters", "ddp_hook", "ddp_state", "metrics", "plans",
    }  # fmt: skip


def test_mpi_ops_has_what_horovods_has():
    same = (SIGNATURES.keys() | OTHERS) - NOT_IN_MPI_OPS - MISSING
    assert set(hvd.mpi_ops.__all__) == same | ONLY_IN_MPI_OPS
    for name in same:
        assert getattr(hvd.mpi_ops, name) is getattr(hvd, name)
    for name in ONLY_IN_MPI_OPS - {"_basics"}:
        assert issubclass(getattr(hvd.mpi_ops, name), torch.autograd.Function)


def test_exceptions_are_where_horovod_has_them():
    from casync.common import exceptions

    assert exceptions.HorovodInternalError is hvd.HorovodInternalError
    interrupt = exceptions.HostsUpdatedInterrupt(True)
    assert isinstance(interrupt, RuntimeError) and interrupt.skip_sync is True
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.9", "2.8")
    assert isinstance(mismatch, ImportError)
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.9", "2.8")
    assert str(mismatch) == exceptions.get_version_mismatch_message("torch", "2.9", "2.8")
    assert "torch installed with version 2.8 but found version 2.9" in str(mismatch)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name not in MISSING])
def test_signature(name):
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert positional == SIGNATURES[name] and list(positional) == list(SIGNATURES[name])
    assert inspect.getdoc(getattr(hvd, name))


def test_methods_of_the_optimizer():
    optimizer = hvd.optimizer._DistributedOptimizer
    for name, arguments in {
        "synchronize": (),
        "skip_synchronize": (),
        "step": ("closure",),
        "zero_grad": (),
        "set_backward_passes_per_step": ("passes",),
        "load_state_dict": ("state_dict",),
    }.items():
        parameters = inspect.signature(getattr(optimizer, name)).parameters.values()
        assert tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == ("self", *arguments)
        assert inspect.getdoc(getattr(optimizer, name))


def test_constants_have_horovods_numbers():
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


def test_all_is_what_is_there():
    assert sorted(hvd.__all__, key=lambda name: (name.lower(), name)) and len(set(hvd.__all__)) == len(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


@pytest.mark.parametrize("name", sorted(MISSING))
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


def test_elastic_is_refused_by_name():
    with pytest.raises(AttributeError, match="not there yet"):
        _ = hvd.elastic
    with pytest.raises(ImportError, match="fixed number of ranks"):
        importlib.import_module("casync.torch.elastic")
