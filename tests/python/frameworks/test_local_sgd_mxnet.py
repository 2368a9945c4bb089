"""LocalSGD and DiLoCo of casync.mxnet in programs of Gluon, beside all ranks in one process; and of casync.numpy."""

import logging

import casync.numpy
import numpy as np
import pytest

from casync.errors import InvalidArgumentError, NotAvailableError
from casync.relaxed.outer import Nesterov
from support.mxnet import assert_identical, batches, hvd, make_net, mx, share, step, values_of

EVERY = 4
SGD = {"learning_rate": 0.1, "momentum": 0.9}


def net_of(seed, *, hybrid=False):
    """With moving means, and a first layer that is frozen."""
    net = make_net(seed=seed)
    with net.name_scope():
        net.add(mx.gluon.nn.BatchNorm(in_channels=5))
    net[3].initialize()
    net[0].collect_params().setattr("grad_req", "null")
    if hybrid:
        net.hybridize()
    return net


def simulated(size, data, lr=1.0, momentum=0.0):
    nets = [net_of(3) for _ in range(size)]
    trainers = [mx.gluon.Trainer(net.collect_params(), "sgd", dict(SGD)) for net in nets]
    anchor = values_of(nets[0])
    velocity = {name: np.zeros_like(values) for name, values in anchor.items()}
    for number, (samples, labels) in enumerate(data, 1):
        for rank, net in enumerate(nets):
            step(net, trainers[rank], share(samples, rank, size), share(labels, rank, size))
        if number % EVERY and number < len(data):
            continue
        for name, of in nets[0].collect_params().items():
            mean = np.mean([values_of(net)[name] for net in nets], axis=0, dtype=np.float64)
            if of.grad_req != "null":
                change = anchor[name] - mean
                velocity[name] = momentum * velocity[name] + change
                mean = anchor[name] - lr * (change + momentum * velocity[name])
            anchor[name] = mean.astype(np.float32)
            for net in nets:
                net.collect_params()[name].set_data(mx.nd.array(anchor[name]))
    return anchor


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("outer", [None, (0.5, 0.5)])
def test_as_simulated(outer, hybrid, rank, size):
    data, net = batches(size), net_of(3 + rank, hybrid=hybrid)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    parameters = net.collect_params()
    if outer is None:
        made = hvd.LocalSGD(parameters, EVERY)
    else:
        made = hvd.DiLoCo(parameters, Nesterov(*outer), EVERY)
    with made as local:
        for samples, labels in data:
            step(net, trainer, share(samples, rank, size), share(labels, rank, size))
            local.step()
    for name, wanted in simulated(size, data, *(outer or ())).items():
        np.testing.assert_allclose(values_of(net)[name], wanted, rtol=1e-3, atol=1e-4, err_msg=name)
    assert_identical(net)


def test_uneven_data_under_a_codec(rank, size):
    data, net = batches(size), net_of(3 + rank)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    with hvd.DiLoCo(net.collect_params(), sync_every=2, fragment_sync_delay=1, compression="onebit") as local:
        for samples, labels in data[: len(data) - rank]:
            step(net, trainer, share(samples, rank, size), share(labels, rank, size))
            local.step()
    assert_identical(net)


def test_what_undoes_a_round_is_refused(rank, size):
    net = make_net()
    hvd.DistributedTrainer(net.collect_params(), "sgd", dict(SGD))
    with pytest.raises(InvalidArgumentError, match=r"use mx\.gluon\.Trainer"):
        hvd.LocalSGD(net.collect_params(), EVERY)
    half = make_net(dtype="float16")
    mx.gluon.Trainer(half.collect_params(), "sgd", {**SGD, "multi_precision": True})
    with pytest.raises(NotAvailableError, match="multi_precision=False"):
        hvd.LocalSGD(half.collect_params(), EVERY)
    with pytest.raises(InvalidArgumentError, match=r"call net\.initialize\(\)"):
        hvd.LocalSGD(make_net(deferred=True).collect_params(), EVERY)


# --- NumPy ------------------------------------------------------------------------------------------------------------


def test_arrays_that_are_changed_in_place(rank, size):
    w = np.full(5, 1.0, np.float32)
    with casync.numpy.LocalSGD({"w": w}, 2) as local:
        for _ in range(5):
            w -= 0.1 * (rank + 1)
            local.step()
    np.testing.assert_allclose(w, 1 - 0.5 * (size + 1) / 2, atol=1e-6)


def test_arrays_that_are_made_anew_are_told_of(rank, size, caplog):
    w = np.zeros(5, np.float32)
    with caplog.at_level(logging.WARNING, "casync"), casync.numpy.LocalSGD({"w": w}, 2) as local:
        for _ in range(4):
            w = w - 1.0
            local.step()
    assert caplog.text.count("w -= g changes an array, and w = w - g makes another one") == 1


def test_what_was_changed_without_a_step_is_not_lost(rank, size):
    """Or a program that forgets step() would have its first parameters after all."""
    w = np.zeros(5, np.float32)
    with casync.numpy.LocalSGD({"w": w}, 2):
        w += rank + 1
    np.testing.assert_allclose(w, (size + 1) / 2, rtol=1e-6)
