"""What else gluon and the Module API take: a key-value store, an optimizer, parameters."""

import pickle

import numpy as np
import pytest

from casync.session import default
from support.mxnet import assert_identical, batches, hvd, make_net, mx, share, step, values_of


def equals_plain_gluon(net, trainer, rank, size, *, batch_of):
    plain = make_net()
    reference = mx.gluon.Trainer(plain.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for samples, labels in batches(size):
        with mx.autograd.record():
            mine = mx.nd.array(share(samples, rank, size)), mx.nd.array(share(labels, rank, size))
            loss = loss_of(net(mine[0]), mine[1])
        loss.backward()
        trainer.step(batch_of(samples))
        step(plain, reference, samples, labels)
    expected = values_of(plain)
    for name, values in values_of(net).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-4)
    assert_identical(net)


def store(name):
    return mx.kv.create(name) if name == "casync" else name


@pytest.mark.parametrize("name", ["casync", "dist_casync"])
def test_a_gluon_trainer_with_the_store(name, rank, size):
    """It sums, as MXNet's own stores do, and gives rank 0's parameters to all."""
    net = make_net(seed=3 + rank)
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store(name))
    trainer._init_kvstore()
    trainer._init_params()
    assert type(trainer._kvstore) is hvd.CaSync
    assert_identical(net)
    equals_plain_gluon(net, trainer, rank, size, batch_of=len)


def test_a_store_compresses(rank, size):
    net = make_net()
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore="dist_casync",
        compression_params={"compression": "always(onebit)"},
    )  # fmt: skip
    losses = []
    for samples, labels in batches(size, 1) * 15:
        losses.append(step(net, trainer, share(samples, rank, size), share(labels, rank, size)).asscalar())
    assert_identical(net)
    assert losses[-1] < losses[0]
    if size > 1:
        assert {plan.codec for name, plan in hvd.plans().items() if "kvstore" in name} == {"onebit"}
    with pytest.raises(ValueError, match="give {'compression': a codec}"):
        mx.kv.create("casync").set_gradient_compression({"type": "2bit"})


def test_what_the_store_is(rank, size):
    kv = mx.kv.create("casync")
    assert (kv.rank, kv.num_workers, kv.is_capable("optimizer")) == (rank, size, False)
    value, out = mx.nd.ones(3) * rank, mx.nd.zeros(3)
    kv.pushpull("a", value, out=out)
    np.testing.assert_array_equal(out.asnumpy(), np.full(3, sum(range(size))))
    np.testing.assert_array_equal(value.asnumpy(), np.full(3, rank))
    kv.broadcast("b", value, out=[out])
    np.testing.assert_array_equal(out.asnumpy(), np.zeros(3))
    with pytest.raises(NotImplementedError, match="on 2 contexts"):
        kv.pushpull("a", [value, value])
    with pytest.raises(NotImplementedError, match="run on the ranks"):
        kv.set_optimizer(mx.optimizer.SGD())


@pytest.mark.parametrize("num_groups", [0, 2])
def test_a_module_with_the_optimizer(num_groups, rank, size):
    samples, labels = batches(size, 1, each=16)[0]
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=32, name="fc1"), act_type="relu")
    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=5, name="fc2"), name="softmax")
    found = []
    for whole in (False, True):
        mine = (samples, labels) if whole else (share(samples, rank, size), share(labels, rank, size))
        batch = mx.io.NDArrayIter(*mine, batch_size=len(mine[0]), label_name="softmax_label")
        module = mx.mod.Module(output, context=mx.cpu())
        module.bind(batch.provide_data, batch.provide_label)
        mx.random.seed(1)
        module.init_params(mx.init.Xavier())
        if not whole:
            hvd.broadcast_parameters(module.get_params()[0], root_rank=0)
        optimizer = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1 / len(mine[0]))
        if not whole:
            optimizer = hvd.DistributedOptimizer(optimizer, num_groups=num_groups)
        module.init_optimizer(kvstore=None, optimizer=optimizer)
        for _ in range(5):
            batch.reset()
            for each in batch:
                module.forward_backward(each)
                module.update()
        found.append({name: value.asnumpy() for name, value in module.get_params()[0].items()})
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-3, atol=1e-4)
    if size > 1:
        assert "allreduce.fc1_weight" in hvd.plans()


def test_the_optimizer_is_the_wrapped_one_for_all_else(rank, size):
    wrapped = mx.optimizer.SGD(learning_rate=0.5)
    optimizer = hvd.DistributedOptimizer(wrapped)
    optimizer.set_learning_rate(0.25)
    optimizer.rescale_grad = 0.125
    assert (wrapped.lr, wrapped.rescale_grad, optimizer.learning_rate, optimizer.wd) == (0.25, 0.125, 0.25, wrapped.wd)
    net = make_net()
    with pytest.warns(UserWarning, match="takes the optimizer itself"):
        trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)
    assert trainer.optimizer is wrapped
    equals_before = pickle.loads(pickle.dumps(wrapped))
    assert equals_before.lr == wrapped.lr


def test_parameters_are_the_roots(rank, size):
    root = size - 1
    net = make_net(seed=10 + rank)
    expected = hvd.broadcast_object(values_of(net), root)
    hvd.broadcast_parameters(net.collect_params(), root_rank=root, prefix="a.")
    for name, values in values_of(net).items():
        np.testing.assert_array_equal(values, expected[name])
    arrays = {"x": mx.nd.ones(3) * rank, "y": mx.nd.ones((2, 3, 4, 5)) * rank}
    hvd.broadcast_parameters(arrays, root_rank=root)
    for array in arrays.values():
        assert (array.asnumpy() == root).all()


@pytest.mark.usefixtures("several")
def test_after_a_parameter_that_ranks_disagree_about_the_names_can_be_used_again(rank):
    def arrays(odd):
        return {f"p{i}": mx.nd.ones(odd if i == 1 else 3) * rank for i in range(4)}

    for _ in range(2):
        with pytest.raises(hvd.MismatchError, match="p1"):
            hvd.broadcast_parameters(arrays(4 + rank), 0)
        assert not default.session().has_outstanding
        good = arrays(3)
        hvd.broadcast_parameters(good, 0)
        assert all((one.asnumpy() == 0).all() for one in good.values())


def test_a_refused_array_is_named():
    odd = {"a": mx.nd.ones(3), "b": mx.nd.ones((3, 4)).tostype("csr"), "c": mx.nd.ones(3)}
    for _ in range(2):
        with pytest.raises(hvd.NotAvailableError, match="tensor b: an array of storage csr"):
            hvd.broadcast_parameters(odd, 0)
        assert not default.session().has_outstanding
        hvd.broadcast_parameters({"a": mx.nd.ones(3), "c": mx.nd.ones(3)}, 0)


def test_objects(rank, size):
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    assert hvd.allgather_object(rank) == list(range(size))
