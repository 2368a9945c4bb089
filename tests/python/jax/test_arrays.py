"""What casync.jax takes for an array, in a world of one; what it computes is in tests/python/adaptor."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("jax")
import casync.jax as hvd  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from casync.jax.tensors import TENSORS  # noqa: E402
from jax.experimental.layout import Format, Layout  # noqa: E402

jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture(autouse=True)
def world():
    hvd.init()
    yield
    hvd.shutdown()


class OnDevice(jax.Array):
    """An array in memory that is not the host's; nobody may ask for anything else of it."""

    class Device:
        platform = "gpu"

        def __repr__(self):
            return "CudaDevice(id=1)"

    def is_deleted(self):
        return False

    def devices(self):
        return {self.Device()}


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_what_is_traced_is_refused_with_what_to_do(transformation):
    for call in (hvd.allreduce, lambda x: hvd.broadcast(x, 0), lambda x: hvd.grouped_allreduce([x])[0]):
        with pytest.raises(hvd.NotAvailableError, match=r"a \w+Tracer has no values yet: .* on what it returns"):
            transformation(call)(jnp.ones((3, 2)))


def test_an_array_on_a_device_is_refused_by_name():
    with pytest.raises(hvd.NotAvailableError, match=r"on CudaDevice\(id=1\): .*jax\.device_put"):
        hvd.allreduce(OnDevice())
    with pytest.raises(hvd.NotAvailableError, match=r"CudaDevice\(id=1\)"):
        hvd.grouped_allreduce([jnp.ones(3), OnDevice()])


@pytest.mark.parametrize("axis", ["x", None], ids=["sharded", "replicated"])
def test_an_array_over_several_devices_is_refused_by_name(axis):
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu"))
    array = jax.device_put(np.ones(4), jax.NamedSharding(mesh, jax.P(axis)))
    with pytest.raises(hvd.NotAvailableError, match=r"over 2 devices, NamedSharding.*addressable_shards"):
        hvd.allreduce(array)
    for shard in array.addressable_shards:
        assert np.array_equal(hvd.allreduce(shard.data), np.ones(4 if axis is None else 2))


@pytest.mark.parametrize("value", [np.ones(3), [1.0], 1.0, "text", None])
def test_what_is_no_array_is_refused_with_what_to_do(value):
    with pytest.raises(ValueError, match=r"is not a JAX array: give jax\.numpy\.asarray"):
        hvd.allreduce(value)


def test_an_array_that_is_gone_is_refused():
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(ValueError, match="deleted, or donated"):
        hvd.allreduce(array)


@pytest.mark.parametrize(
    "make", [lambda: jax.random.key(0), lambda: jnp.ones(3, "complex64"), lambda: jnp.ones(3, "int4")]
)
def test_other_dtypes_are_refused_by_name(make):
    with pytest.raises(hvd.NotAvailableError, match=r"dtype (key<fry>|complex64|int4): there are float32"):
        hvd.allreduce(make())


@pytest.mark.parametrize("dtype", ["int64", "float64", "int32", "bfloat16"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_results_keep_the_dtype_also_without_x64(dtype, factor):
    values = np.array([2**40 + 2, 6] if dtype.endswith("64") else [6, 2]).astype(dtype)
    with jax.enable_x64(True):
        array = jnp.asarray(values)
    assert not jax.config.jax_enable_x64
    results = [
        hvd.allreduce(array, op=hvd.Sum, prescale_factor=factor),
        hvd.reducescatter(array, op=hvd.Sum, prescale_factor=factor),
        hvd.synchronize(hvd.grouped_allreduce_async([array], op=hvd.Sum, postscale_factor=factor))[0],
    ]
    for result in results:
        assert result.dtype == dtype and np.array_equal(np.asarray(result), (values * factor).astype(dtype))
    for result in (hvd.allgather(array), hvd.alltoall(array), hvd.broadcast(array, 0)):
        assert result.dtype == dtype and np.array_equal(np.asarray(result), values)


def test_an_array_whose_rows_do_not_lie_one_after_the_other():
    array = jnp.arange(6.0).reshape(2, 3)
    turned = jax.jit(lambda x: x + 1, out_shardings=Format(Layout(major_to_minor=(1, 0)), array.sharding))(array)
    assert not np.asarray(turned).flags.c_contiguous
    for result in (hvd.allreduce(turned), hvd.allgather(turned), hvd.broadcast(turned, 0), hvd.allreduce(turned * 1)):
        assert np.array_equal(result, np.arange(1.0, 7).reshape(2, 3))


def test_nothing_is_copied_that_is_only_read():
    array = jnp.arange(1000.0)
    assert TENSORS.address(TENSORS.contiguous(array)) == TENSORS.address(array) == np.asarray(array).ctypes.data


@pytest.mark.parametrize("committed", [False, True])
def test_results_are_where_their_array_is_and_as_free_to_go(committed):
    device = jax.devices("cpu")[1]
    with jax.default_device(device):
        array = jax.device_put(np.ones(4, np.float32), device if committed else None)
    results = [
        hvd.allreduce(array),
        hvd.allreduce(array, op=hvd.Sum, prescale_factor=2.0),
        hvd.allgather(array),
        hvd.broadcast(array, 0),
        hvd.reducescatter(array),
    ]
    for result in results:
        assert (result.devices(), result.committed) == ({device}, committed)


def test_received_splits_are_where_the_splits_are():
    device = jax.devices("cpu")[1]
    splits = jax.device_put(np.array([3], np.int32), device)
    output, received = hvd.alltoall(jnp.arange(3.0), splits)
    assert output.tolist() == [0, 1, 2] and received.tolist() == [3]
    assert (received.dtype, received.devices()) == ("int32", {device})


def test_an_array_without_dimensions():
    for factor in (1.0, 0.7):
        result = hvd.allreduce(jnp.asarray(5, "int32"), op=hvd.Sum, prescale_factor=factor)
        assert isinstance(result, jax.Array) and result.shape == () and result == int(5 * factor)


def test_nothing_works_in_place():
    assert not any(name.endswith("_") for name in hvd.__all__)
    with pytest.raises(ValueError, match="never change"):
        TENSORS.assign(jnp.ones(3), jnp.zeros(3))


def test_compress_and_decompress_as_in_horovod():
    values = jnp.linspace(0, 1, 10)
    for codec, dtype in ((hvd.Compression.fp16, np.float16), (hvd.Compression.bf16, ml_dtypes.bfloat16)):
        compressed, context = codec.compress(values)
        assert compressed.dtype == dtype
        np.testing.assert_allclose(codec.decompress(compressed, context), values, rtol=1e-2)
    integers = jnp.arange(5)
    assert hvd.Compression.fp16.compress(integers)[0] is integers


def test_all_names_are_there():
    assert all(hasattr(hvd, name) for name in hvd.__all__) and len(set(hvd.__all__)) == len(hvd.__all__)


def test_no_other_framework_is_imported_and_jax_sees_no_fork(tmp_path):
    program = (
        "import sys, jax, casync.jax as hvd; hvd.init(); "
        "hvd.allreduce(jax.numpy.ones(3), compression='onebit'); hvd.broadcast_object({}); "
        "print({'torch', 'tensorflow', 'keras', 'mxnet', 'casync.torch'}.intersection(sys.modules)); hvd.shutdown()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
