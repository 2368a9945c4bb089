"""casync.mxnet.DistributedTrainer against plain gluon on the whole batch, and what it promises besides."""

import contextlib
import logging

import numpy as np
import pytest

from support.mxnet import assert_identical, batches, hvd, make_net, mx, share, step, values_of

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
    "nag": {"learning_rate": 0.05, "momentum": 0.9},
}
CODECS = [
    "none", "fp16", "bf16", "onebit", "terngrad(bits=2)", "terngrad(bits=8)", "tbq", "dgc(ratio=0.05)",
    "graddrop(drop=0.9)", "adacomp", "threelc", "powersgd(rank=2, start_step=1)",
]  # fmt: skip


def train(net, trainer, data, rank, size):
    losses = []
    for samples, labels in data:
        losses.append(step(net, trainer, share(samples, rank, size), share(labels, rank, size)))
    return [float(loss.asscalar()) for loss in losses]


def trainer_of(net, **options):
    optimizer = options.pop("optimizer", "sgd")
    return hvd.DistributedTrainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"gradient_predivide_factor": 4.0}, {"topology": "ring"}],
                         ids=str)  # fmt: skip
def test_equals_plain_gluon_on_the_whole_batch(optimizer, options, rank, size):
    net, plain = make_net(), make_net()
    trainer = trainer_of(net, optimizer=optimizer, **options)
    reference = mx.gluon.Trainer(plain.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
    data = batches(size)
    train(net, trainer, data, rank, size)
    for samples, labels in data:
        step(plain, reference, samples, labels)
    expected = values_of(plain)
    for name, values in values_of(net).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-4)
    assert_identical(net)


def test_the_first_parameters_go_first(rank, size, several):
    """A trainer has them in the order of their names."""
    net = make_net()
    trainer = trainer_of(net, prefix="first.")
    train(net, trainer, batches(size)[:1], rank, size)
    mx.nd.waitall()
    plans = hvd.plans()
    priorities = [plans[f"allreduce.first.{name}"].priority for name in sorted(net.collect_params())]
    assert priorities == [-i for i in range(len(priorities))] and len(priorities) > 3


def test_the_mean_is_that_of_float64(rank, size):
    rng = np.random.default_rng(1)
    everyones = rng.standard_normal((size, 30, 7))
    param = mx.gluon.Parameter("w", shape=(30, 7), init="zeros")
    param.initialize()
    trainer = hvd.DistributedTrainer([param], "sgd", {"learning_rate": 1.0})
    with mx.autograd.record():
        loss = (param.data() * mx.nd.array(everyones[rank])).sum()
    loss.backward()
    trainer.step(1)
    np.testing.assert_allclose(param.data().asnumpy(), -everyones.mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_keeps_replicas_identical_and_learns(codec, rank, size):
    net = make_net(seed=rank)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = trainer_of(net, compression={"*bias": "none", "*": f"always({codec})" if codec != "none" else codec})
    data = batches(size, 1) * 20
    losses = train(net, trainer, data, rank, size)
    assert_identical(net)
    everyones = np.mean(hvd.allgather_object(losses), axis=0)
    assert np.isfinite(everyones).all() and everyones[-1] < everyones[0]
    if size > 1:
        assert hvd.plans()["allreduce.net_dense0_weight"].codec.startswith(codec.partition("(")[0])


def test_what_a_codec_takes_over_is_switched_off(rank, size):
    net = make_net()
    trainer = trainer_of(net, compression="dgc(ratio=0.05)")
    train(net, trainer, batches(size, 2), rank, size)
    assert trainer.optimizer.momentum == (0.0 if size > 1 else 0.9)
    with pytest.raises(ValueError, match="neither SGD nor NAG") if size > 1 else contextlib.nullcontext():
        trainer_of(net, optimizer="adam", compression="dgc(ratio=0.05)")
    trainer_of(net, optimizer="adam", compression="dgc(ratio=0.05)", momentum=0.0)


def test_momentum_that_is_taken_over_is_applied_to_what_goes_uncompressed(rank, size):
    """Small ones, of which some have the codec: the parameters are those of SGD with its own momentum."""
    net, plain = make_net(), make_net()
    trainer = trainer_of(net, compression={"*1_weight": "none", "*": "dgc(ratio=0.05)"})
    reference = mx.gluon.Trainer(plain.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.0})
    trainer.optimizer.wd = 0.0
    data = batches(size)
    train(net, trainer, data, rank, size)
    for samples, labels in data:
        step(plain, reference, samples, labels)
    expected = values_of(plain)
    for name, values in values_of(net).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("codec", ["onebit", "dgc(ratio=0.05)", "powersgd(rank=2, start_step=1)"])
def test_a_checkpoint_goes_on_with_the_same_bits(codec, rank, size, tmp_path):
    def parts():
        net = make_net()
        return net, trainer_of(net, compression={"*bias": "none", "*": f"always({codec})"})

    data = batches(size, 8)
    net, trainer = parts()
    train(net, trainer, data[:4], rank, size)
    kept, saved = values_of(net), trainer.state_dict()
    trainer.save_states(str(tmp_path / "states"))
    train(net, trainer, data[4:], rank, size)
    expected = values_of(net)
    if size > 1:
        assert saved["residuals"] or saved["states"]
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    again, other = parts()
    for name, param in again.collect_params().items():
        param.set_data(mx.nd.array(kept[name]))
    other.load_states(str(tmp_path / "states"))
    other.load_state_dict(saved)
    train(again, other, data[4:], rank, size)
    for name, values in values_of(again).items():
        np.testing.assert_array_equal(values, expected[name])


def test_deferred_initialisation(rank, size):
    net = make_net(deferred=True, seed=rank)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = trainer_of(net)
    samples, labels = batches(size, 1)[0]
    net(mx.nd.array(samples))
    assert_identical(net)
    for _ in range(3):
        step(net, trainer, share(samples, rank, size), share(labels, rank, size))
    assert_identical(net)


def test_two_trainers(rank, size, caplog):
    nets = [make_net(prefix=f"{name}_") for name in ("generator", "critic")]
    trainers = [trainer_of(net, compression="always(onebit)") for net in nets]
    for _ in range(3):
        for net, trainer in zip(nets, trainers, strict=True):
            train(net, trainer, batches(size, 1), rank, size)
    for net in nets:
        assert_identical(net)
    same = make_net(prefix="generator_")
    other = trainer_of(same, compression="always(onebit)")
    train(same, other, batches(size, 1), rank, size)
    if size > 1:
        with pytest.raises(ValueError, match="belongs to a DistributedOptimizer that was made later"):
            train(nets[0], trainers[0], batches(size, 1), rank, size)
    third = trainer_of(make_net(prefix="generator_"), compression="always(onebit)", prefix="third.")
    assert "third.generator_dense0_weight" in third._by_name()


def test_half_precision(rank, size):
    """Element by element: MXNet has no dense layers of float16 on the host."""
    param = mx.gluon.Parameter("half", shape=(100, 100), dtype="float16", init="ones")
    param.initialize()
    options = {"learning_rate": 0.25, "momentum": 0.5, "multi_precision": True}
    trainer = hvd.DistributedTrainer([param], "sgd", options, compression="none")
    for _ in range(3):
        with mx.autograd.record():
            loss = (param.data() * (rank + 1)).sum()
        loss.backward()
        trainer.step(1)
    mean = (size + 1) / 2
    value, velocity = 1.0, 0.0
    for _ in range(3):
        velocity = 0.5 * velocity + mean
        value -= 0.25 * velocity
    assert param.data().dtype == np.float16
    np.testing.assert_allclose(param.data().asnumpy(), np.full((100, 100), value), rtol=1e-3)


def test_a_parameter_that_only_some_ranks_reach(rank, size):
    """Zeros are submitted for it elsewhere, not what was left from the last step, and it is updated everywhere."""
    net = make_net()
    used, idle = (mx.gluon.Parameter(name, shape=(3,), init="ones") for name in ("used", "idle"))
    for param in (used, idle):
        param.initialize()
    trainer = hvd.DistributedTrainer([idle, used], "sgd", {"learning_rate": 1.0})
    for reached in (True, rank == 0):
        with mx.autograd.record():
            loss = (used.data() + (idle.data() if reached else 0)).sum()
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    np.testing.assert_allclose(idle.data().asnumpy(), np.full(3, -1.0 / size), atol=1e-6)
    np.testing.assert_array_equal(used.data().asnumpy(), np.full(3, -1.0))
    del net


@pytest.mark.parametrize("options", [{}, {"num_groups": 1}], ids=str)
def test_a_parameter_that_is_frozen_later_stays(options, rank, size):
    """And goes on when it is not any more."""
    staying, frozen = (mx.gluon.Parameter(name, shape=(3,), init="ones") for name in ("staying", "frozen"))
    for param in (staying, frozen):
        param.initialize()
    trainer = hvd.DistributedTrainer([staying, frozen], "sgd", {"learning_rate": 1.0, "momentum": 0.5}, **options)
    seen = []
    for grad_req in ("write", "null", "null", "write"):
        frozen.grad_req = grad_req
        with mx.autograd.record():
            loss = ((staying.data() + frozen.data()) * (rank + 1)).sum()
        loss.backward()
        trainer.step(1)
        seen.append(float(frozen.data().asnumpy()[0]))
    mean = (size + 1) / 2
    assert seen[:3] == [1 - mean] * 3
    assert seen[3] < seen[2]
    assert float(staying.data().asnumpy()[0]) == 1 - mean * (1 + 1.5 + 1.75 + 1.875)


def test_replicas_that_differ_are_told_of(rank, size, caplog):
    net = make_net(seed=rank)
    with caplog.at_level(logging.ERROR, logger="casync"):
        train(net, trainer_of(net), batches(size, 1), rank, size)
    told = [record.getMessage() for record in caplog.records if "replicas differ" in record.getMessage()]
    assert len(told) == (1 if rank == 0 and size > 1 else 0)


def test_convolutions(rank, size):
    """Whose values and gradients oneDNN may keep in an order of its own."""
    nn = mx.gluon.nn
    nets = []
    for _ in range(2):
        net = nn.HybridSequential(prefix="conv_")
        with net.name_scope():
            net.add(nn.Conv2D(16, 3, in_channels=8), nn.BatchNorm(in_channels=16), nn.Conv2D(32, 3, in_channels=16))
            net.add(nn.Conv2DTranspose(16, 3, in_channels=32), nn.GlobalAvgPool2D(), nn.Dense(3, in_units=16))
        mx.random.seed(5)
        net.initialize(mx.init.Xavier())
        nets.append(net)
    hvd.broadcast_parameters(nets[0].collect_params())
    images = np.random.default_rng(3).standard_normal((4, 8, 12, 12)).astype(np.float32)
    trainer = hvd.DistributedTrainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.1})
    reference = mx.gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(3):
        for net, its in zip(nets, (trainer, reference), strict=True):
            with mx.autograd.record():
                loss = net(mx.nd.array(images)).square().sum()
            loss.backward()
            its.step(4)
    expected = values_of(nets[1])
    for name, values in values_of(nets[0]).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_loss_scale_is_told(rank, size):
    """What onebit has not sent in a step with one scale is sent in the next in that one's: the sums agree."""

    class Scaler:
        loss_scale = 1.0

        def has_overflow(self, params):
            return False

    results = []
    for scales in ((1.0, 1.0, 1.0), (1.0, 8.0, 64.0)):
        param = mx.gluon.Parameter("w", shape=(100, 100), init="zeros")
        param.initialize()
        trainer = hvd.DistributedTrainer([param], "sgd", {"learning_rate": 1.0}, compression="always(onebit)")
        trainer._amp_loss_scaler = Scaler()
        gradient = mx.nd.array(np.random.default_rng(rank).standard_normal((100, 100)))
        for scale in scales:
            trainer._amp_loss_scaler.loss_scale, trainer._scale = scale, 1.0 / scale
            with mx.autograd.record():
                loss = (param.data() * gradient).sum() * scale
            loss.backward()
            trainer.step(1)
        results.append(param.data().asnumpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shortest", [0, 3, 4, 5])
def test_join_with_any_numbers_of_batches(rank, size, shortest, caplog):
    """Replicas are compared before steps 1, 5, 9; after a join all ranks count the same steps."""
    hvd.shutdown()
    hvd.init(timeout_s=20.0, check_replicas=4)
    param = mx.gluon.Parameter("w", shape=(30, 7), init="zeros")
    param.initialize()
    trainer = hvd.DistributedTrainer([param], "sgd", {"learning_rate": 0.1})
    for _ in range(2):
        for _ in range(shortest + 2 * rank):
            with mx.autograd.record():
                loss = (param.data() * 2.0).sum()
            loss.backward()
            trainer.step(1)
        mx.nd.waitall()
        last = hvd.join()
        hvd.broadcast_parameters({"w": param.data()}, last)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
