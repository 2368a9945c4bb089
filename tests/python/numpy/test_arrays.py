"""What casync.numpy takes for an array, in a world of one; what it computes is in tests/python/adaptor."""

import casync.numpy as hvd
import ml_dtypes
import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def world():
    hvd.init()
    yield
    hvd.shutdown()


class OnDevice:
    """A tensor of a framework, in memory that is not the host's."""

    def __dlpack__(self, **_):
        raise AssertionError("nobody may ask for the memory")

    def __dlpack_device__(self):
        return 2, 1


def test_a_tensor_with_dlpack_is_read_where_it_lies():
    tensor = torch.arange(6.0).reshape(2, 3)
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0)
    assert isinstance(result, np.ndarray) and np.array_equal(result, 2 * tensor.numpy())
    assert np.array_equal(hvd.allgather(tensor[:, 1:]), tensor.numpy()[:, 1:])


def test_a_tensor_with_dlpack_is_written_where_it_lies():
    tensor = torch.ones(4)
    assert hvd.allreduce_(tensor, op=hvd.Sum, postscale_factor=3.0) is tensor and tensor.tolist() == [3.0] * 4
    every_other = torch.ones(8)[::2]
    hvd.synchronize(hvd.allreduce_async_(every_other, op=hvd.Sum, prescale_factor=5.0))
    assert every_other.tolist() == [5.0] * 4


def test_an_array_on_a_device_is_refused_by_name():
    with pytest.raises(hvd.NotAvailableError, match="OnDevice on device cuda:1"):
        hvd.allreduce(OnDevice())
    with pytest.raises(hvd.NotAvailableError, match="cuda:1"):
        hvd.grouped_allreduce([np.ones(3), OnDevice()])


@pytest.mark.parametrize("value", [[1.0], 1.0, "text", None])
def test_what_is_no_array_is_refused_with_what_to_do(value):
    with pytest.raises(ValueError, match=r"is not an array: give numpy\.asarray"):
        hvd.allreduce(value)


def test_a_read_only_array_can_be_read_alone():
    array = np.ones(3)
    array.flags.writeable = False
    assert np.array_equal(hvd.allreduce(array), np.ones(3))
    for call in (hvd.allreduce_, hvd.allreduce_async_, lambda array: hvd.broadcast_(array, 0)):
        with pytest.raises(ValueError, match="read-only"):
            call(array)


@pytest.mark.parametrize("dtype", [">f4", "complex64", "U3", "datetime64[s]", "float128"])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(hvd.NotAvailableError, match="there are float32"):
        hvd.allreduce(np.zeros(3, dtype))


def test_an_array_without_dimensions():
    for factor in (1.0, 0.7):
        result = hvd.allreduce(np.array(5, np.int32), op=hvd.Sum, prescale_factor=factor)
        assert isinstance(result, np.ndarray) and result.shape == () and result == int(5 * factor)


def test_compress_and_decompress_as_in_horovod():
    values = np.linspace(0, 1, 10, dtype=np.float32)
    for codec, dtype in ((hvd.Compression.fp16, np.float16), (hvd.Compression.bf16, ml_dtypes.bfloat16)):
        compressed, context = codec.compress(values)
        assert compressed.dtype == dtype
        np.testing.assert_allclose(codec.decompress(compressed, context), values, rtol=1e-2)
    integers = np.arange(5)
    assert hvd.Compression.fp16.compress(integers)[0] is integers


def test_all_names_are_there():
    assert all(hasattr(hvd, name) for name in hvd.__all__) and len(set(hvd.__all__)) == len(hvd.__all__)


def test_a_masked_array_is_refused_by_name():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda each, **_: hvd.broadcast(each, 0, name="m")):
        with pytest.raises(hvd.NotAvailableError, match=r"a MaskedArray: .*filled\(0\)"):
            call(masked, name="m")
    assert np.array_equal(hvd.allreduce(masked.filled(0)), [1.0, 0.0])


CALLS = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allgather": hvd.allgather,
    "broadcast": lambda array, name: hvd.broadcast(array, 0, name=name),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
    "grouped_allreduce": lambda array, name: hvd.grouped_allreduce([array], name=name),
}


@pytest.mark.parametrize("name", [5, b"x", True, ("a",), "\ud800"])
@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_is_none_is_refused(call, name):
    with pytest.raises(hvd.InvalidArgumentError, match="name=.*: it must be a string") as refused:
        CALLS[call](np.ones(2), name=name)
    assert repr(name)[1:-1] in str(refused.value)


@pytest.mark.parametrize("call", [hvd.allreduce, hvd.allreduce_, hvd.reducescatter])
@pytest.mark.parametrize("factor", ["prescale_factor", "postscale_factor"])
@pytest.mark.parametrize("value", ["2", float("nan"), None, 1j, 10**400])
def test_a_factor_that_is_no_number_is_refused(call, factor, value):
    with pytest.raises(hvd.InvalidArgumentError, match=f"{factor}=.*: it must be a number"):
        call(np.ones(2), **{factor: value})


@pytest.mark.parametrize("given", [3, b"ring"])
def test_a_topology_that_is_no_text_is_refused(given):
    for call in (hvd.allreduce, hvd.allreduce_):
        with pytest.raises(hvd.InvalidArgumentError, match=r"topology=.*: it must be one of auto, direct"):
            call(np.ones(2), topology=given)


@pytest.mark.parametrize("handle", ["a", None, 1.5])
def test_a_handle_that_is_none_is_refused(handle):
    for call in (hvd.synchronize, hvd.poll):
        with pytest.raises(hvd.InvalidArgumentError, match="handle=.*: give what an asynchronous operation"):
            call(handle)


@pytest.mark.parametrize("call", [
    hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allreduce_async, hvd.grouped_allgather,
    hvd.grouped_reducescatter, hvd.grouped_reducescatter_async,
])  # fmt: skip
@pytest.mark.parametrize("given", [None, 5, iter(())])
def test_a_group_that_is_none_is_refused(call, given):
    with pytest.raises(hvd.InvalidArgumentError, match="tensors=.*: it must be a list of tensors"):
        call(given)
