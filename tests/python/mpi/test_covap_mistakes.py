"""covap where it cannot be: each mistake is an error that names it, and the session stays usable."""

import casync.numpy as numpy_hvd
import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync.errors import InvalidArgumentError, NotAvailableError
from support.training import make_model


def optimizer_of(compression, **arguments):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, **arguments)


@pytest.mark.parametrize(
    ("compression", "why"),
    [
        ("covap(dgc)", "dgc takes over the optimizer's momentum"),
        ("covap(fp16, interval=0)", "interval=0 is not a whole number from 1 to 8"),
        ("covap(fp16, interval=9)", "interval=9 is not a whole number from 1 to 8"),
        ("covap(fp16, interval=auto)", "interval=auto is not a whole number"),
        ("covap(fp16, interval=4, rate=0.5)", "covap does not know 'rate'; it has interval, init,"),
        ("covap(fp16, interval=4, interval=4)", "it has interval twice"),
        ("covap(fp16, interval=4, init=1.5)", "init=1.5 is not from 0 to 1"),
        ("covap(fp16, interval=4, init=half)", "init=half is not a number"),
        ("covap(fp16, interval=4, init=0, ascend_steps=9999999999)", "not a whole number from 1 to 4294967295"),
        ("covap(fp16, interval=4, ascend_steps=50)", "rises from init, which is not given"),
        ("covap(covap(fp16), interval=4)", "it is within another covap"),
        ("auto(covap(fp16, interval=4), fp16)", "name covap alone"),
        ("covap(fp16, interval=4, ascend_steps=0)", "ascend_steps=0 is not a whole number from 1 on"),
        ("covap(fp16, interval=4, ascend_steps=1.5)", "ascend_steps=1.5 is not a whole number from 1 to"),
        ("covap(fp16, interval=4, ascend_range=0)", "ascend_range=0 is not above 0 and at most 1"),
        ("covap(twobit, interval=4)", "twobit"),
        ("covap(auto, interval=4)", "auto compares ways by the time of single steps"),
        ("covap(always(fp16), interval=4)", r"write always\(covap"),
        ("covap(dgc, interval=4)", "dgc takes over the optimizer's momentum"),
    ],
)
def test_what_cannot_be_read_is_refused_at_every_door(compression, why):
    with pytest.raises(InvalidArgumentError, match=why):
        hvd.allreduce(torch.ones(5000), name="w", compression=compression)
    with pytest.raises(InvalidArgumentError, match=why):
        optimizer_of({"0.*": compression, "*": "none"})
    with pytest.raises(InvalidArgumentError, match=why):
        hvd.ddp_state(compression=compression)
    with pytest.raises(InvalidArgumentError, match=why):
        numpy_hvd.allreduce(np.ones(5000, np.float32), name="w", compression=compression)
    hvd.allreduce(torch.ones(5000), name="w", compression="covap(fp16, interval=4)")  # the session stays usable


def test_what_cannot_wait_is_refused_by_name():
    covap = "covap(none, interval=4)"
    with pytest.raises(InvalidArgumentError, match=r"tensor allreduce\.i .*one step of 4.* Sum of int64 has no resid"):
        hvd.allreduce(torch.ones(5000, dtype=torch.int64), name="i", op=hvd.Sum, compression=covap)
    with pytest.raises(InvalidArgumentError, match="a Max of float32 has no residual"):
        hvd.allreduce(torch.ones(5000), name="m", op=hvd.Max, compression=covap)
    with pytest.raises(InvalidArgumentError, match="an Adasum of float32 has no residual"):
        hvd.allreduce(torch.ones(5000), name="a", op=hvd.Adasum, compression=covap)
    with pytest.raises(InvalidArgumentError, match="a reducescatter would keep a residual of the whole input"):
        hvd.reducescatter(torch.ones(5000), name="r", compression=covap)


def test_a_tensor_without_a_name_is_refused():
    covap = "covap(none, interval=4)"
    for unnamed in (
        lambda: hvd.allreduce(torch.ones(5000), compression=covap),
        lambda: hvd.allreduce_(torch.ones(5000), compression={"*": covap}),
        lambda: hvd.grouped_allreduce([torch.ones(5000)], compression=covap),
    ):
        with pytest.raises(InvalidArgumentError, match="this one has none: give it as name="):
            unnamed()
    assert torch.equal(hvd.allreduce(torch.ones(5000), compression="covap(none, interval=1)"), torch.ones(5000))


def test_what_needs_the_gradient_of_every_step_is_refused():
    model = make_model()
    with pytest.raises(NotAvailableError, match="monitor=: covap does not send the mean gradient of each step"):
        optimizer_of("covap(fp16, interval=2)", monitor=hvd.CompressionMonitor())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for kind in (hvd.LocalSGD, hvd.DiLoCo):
        with pytest.raises(NotAvailableError, match="covap has gradients of single steps wait"):
            kind(model, optimizer, sync_every=4, compression="covap(fp16, interval=2)")


def test_ranks_with_other_intervals_hear_of_it(rank, several):
    with pytest.raises(hvd.MismatchError, match="compression"):
        hvd.allreduce(torch.ones(5000), name="w", compression=f"covap(fp16, interval={2 + (rank == 0)})")
