"""Codecs by name and shape: a table of patterns in `compression=`."""

import numpy as np
import pytest


@pytest.mark.usefixtures("several")
def test_ranks_whose_tables_differ_disagree_by_name_about_that_tensor_alone(adaptor, hvd, rank, size):
    compression = {"kept": "fp16", "other": "onebit" if rank else "terngrad", "*": "none"}
    handle = hvd.allreduce_async(adaptor.full(9000, rank), name="kept", compression=compression)
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.allreduce(adaptor.ones(9000), name="other", compression=compression)
    for text in ("allreduce.other", "compression always(onebit)", "compression always(terngrad)"):
        assert text in str(caught.value), str(caught.value)
    adaptor.assert_filled(hvd.synchronize(handle), 9000, (size - 1) / 2)


def test_operations_take_tables_too(adaptor, hvd, size):
    table = {"counts": "fp16", "g.0": "onebit", "g.*": "terngrad(bits=8)", "noname.*": "bf16"}
    counts = hvd.allreduce(adaptor.tensor(np.arange(9000)), name="counts", op=hvd.Sum, compression=table)
    adaptor.assert_equal(counts, np.arange(9000) * size)  # a 16-bit cast leaves integers alone, named in full as well
    hvd.grouped_allreduce([adaptor.ones(5000), adaptor.ones(5000)], name="g", compression=table)
    hvd.allreduce(adaptor.ones(5000), compression=table)
    with pytest.raises(ValueError, match="parameter h matches no rule"):
        hvd.allreduce(adaptor.ones(5000), name="h", compression=table)
    with pytest.raises(ValueError, match="twobit"):
        hvd.allreduce(adaptor.ones(5000), name="g.0", compression={"g.*": "onebit", "*": "twobit"})
    if size > 1:
        codecs = {name: plan.codec for name, plan in hvd.plans().items()}
        assert codecs["allreduce.g.0"] == "onebit" and codecs["allreduce.g.1"] == "terngrad(bits=8)"
        assert codecs["allreduce.counts"] == "none"
        assert {codec for name, codec in codecs.items() if name.startswith("allreduce.noname.")} == {"bf16"}


def test_operations_see_the_shape(adaptor, hvd, size):
    table = {"* where ndim == 1 and numel < 6000": "none", "* where shape[-1] == 3": "bf16", "*": "fp16"}
    for name, shape in (("flat", (5000,)), ("long", (7000,)), ("narrow", (3000, 3)), ("wide", (3, 3000))):
        given = adaptor.tensor(np.ones(shape, np.float32))
        hvd.allreduce(given, name=name, compression=table)
        hvd.allreduce(given, name=name, compression=table)  # by the shortcut of a name that is known
    if size > 1:
        codecs = {name.removeprefix("allreduce."): plan.codec for name, plan in hvd.plans().items()}
        assert codecs == {"flat": "none", "long": "fp16", "narrow": "bf16", "wide": "fp16"}
