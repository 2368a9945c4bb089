"""Programs of gluon whose layers, weights or dtypes are not all of a kind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from casync.mxnet.loading import mx

from tests.python.programs.cells import refused, right
from tests.python.programs.doors_mxnet import INPUTS, OUTPUTS, ROWS
from tests.python.programs.in_mxnet import SGD, gluon, net, step, train, weights

nd, autograd, nn = mx.nd, mx.autograd, gluon.nn


@right("weights that are tied", "mxnet")
def tied(door: Any) -> dict[str, Any]:
    first = nn.Dense(INPUTS, activation="tanh", in_units=INPUTS, prefix="one_")
    second = nn.Dense(INPUTS, in_units=INPUTS, params=first.params)
    model = net(door.seed, first, second, nn.Dense(OUTPUTS, in_units=INPUTS))
    return train(door, model, door.trainer(model, **SGD))


@refused(
    "an embedding whose gradients are sparse", "mxnet",
    error="NotAvailableError", says="row_sparse", batches=1,
    why="MXNet keeps a row_sparse gradient in memory that its engine moves; Horovod for MXNet refuses it, too",
)  # fmt: skip
def sparse(door: Any) -> dict[str, Any]:
    model = net(door.seed, nn.Embedding(20, OUTPUTS, sparse_grad=True))
    trainer = door.trainer(model, learning_rate=0.1)
    for x, y in door.batches(2):
        with autograd.record():
            loss = gluon.loss.L2Loss()(model((nd.abs(x[:, 0]) * 2).floor()), y)
        loss.backward()
        trainer.step(len(x))
    return weights(model)


@right("parameters without elements or dimensions, or not contiguous", "mxnet")
def odd(door: Any) -> dict[str, Any]:
    """MXNet has arrays of one element in place of those without dimensions."""
    model = net(door.seed, nn.Dense(OUTPUTS, in_units=INPUTS), nn.PReLU())
    return train(door, model, door.trainer(model, learning_rate=0.02))


@right("convolutions in channels_last", "mxnet")
def convolutions(door: Any) -> dict[str, Any]:
    model = net(
        door.seed,
        nn.HybridLambda(lambda F, x: F.reshape(x, (-1, 4, 2, 2))),
        nn.Conv2D(6, 2, in_channels=4),
        nn.Flatten(),
        nn.Dense(OUTPUTS, in_units=6),
    )
    return train(door, model, door.trainer(model, **SGD))


@right("training in float64", "mxnet")
def float64(door: Any) -> dict[str, Any]:
    model = net(door.seed, dtype="float64")
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(5):
        step(model, trainer, x.astype("float64"), y.astype("float64"))
    return weights(model)


@right("adapters beside frozen weights (LoRA)", "mxnet")
def adapters(door: Any) -> dict[str, Any]:
    model = net(
        door.seed,
        nn.Dense(24, activation="tanh", in_units=INPUTS, prefix="base_"),
        nn.Dense(2, in_units=24, use_bias=False, prefix="down_"),
        nn.Dense(OUTPUTS, in_units=2, use_bias=False, prefix="up_"),
    )
    model[0].collect_params().setattr("grad_req", "null")
    return train(door, model, door.trainer(model, **SGD))


@right("a recurrent net and sequences of many lengths", "mxnet")
def recurrent(door: Any) -> dict[str, Any]:
    mx.random.seed(door.seed)
    np.random.seed(door.seed)
    cell = gluon.rnn.LSTM(6, input_size=4, layout="NTC", prefix="lstm_")
    head = nn.Dense(OUTPUTS, in_units=6, prefix="head_")
    model = nn.Sequential(prefix="net_")
    model.add(cell, head)
    model.initialize(mx.init.Xavier())
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(4):
        with autograd.record():
            said = head(cell(x.reshape((-1, 4, 4)))[:, -1])
            loss = gluon.loss.L2Loss()(said, y)
        loss.backward()
        trainer.step(len(x))
    return weights(model)


@right("batch normalisation", "mxnet", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    """With the moving means, whose numbers do not depend on the other rows."""
    norm = nn.BatchNorm(in_channels=8, use_global_stats=True)
    model = net(door.seed, nn.Dense(8, in_units=INPUTS), norm, nn.Dense(OUTPUTS, in_units=8))
    found = train(door, model, door.trainer(model, **SGD))
    return {name: value for name, value in found.items() if "running" not in name}


@right("parameters that some ranks do not use", "mxnet")
def unused_by_some(door: Any) -> dict[str, Any]:
    """`ignore_stale_grad`, which gluon wants then."""
    model = nn.HybridSequential(prefix="net_")
    model.add(*(nn.Dense(OUTPUTS, in_units=INPUTS, prefix=prefix) for prefix in ("one_", "two_")))
    mx.random.seed(door.seed)
    model.initialize(mx.init.Xavier())
    trainer = door.trainer(model, learning_rate=0.05)
    for number, (x, y) in enumerate(door.batches(4)):
        with autograd.record():
            losses = []
            for at, rank in enumerate(door.ranks()):
                own = slice(at * ROWS, (at + 1) * ROWS)
                losses.append(gluon.loss.L2Loss()(model[(number + rank) % 2](x[own]), y[own]).mean())
            loss = nd.add_n(*losses) / len(losses)
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    return weights(model)


@right("parameters of several dtypes", "mxnet")
def several_dtypes(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    model[1].cast("float64")
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(5):
        with autograd.record():
            loss = gluon.loss.L2Loss()(model[1](model[0](x).astype("float64")), y.astype("float64"))
        loss.backward()
        trainer.step(len(x))
    return weights(model)


@right("copies of a model (deepcopy, torch.save)", "mxnet")
def copied(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    batches = door.batches(5)
    for _ in range(3):
        step(model, trainer, *next(batches))
    best = copy.deepcopy(model)
    for _ in range(2):
        step(model, trainer, *next(batches))
    return weights(model, best)


@right("dropout, with a seed for each rank", "mxnet")
def dropout(door: Any) -> dict[str, Any]:
    dense = [nn.Dense(24, activation="tanh", in_units=INPUTS), nn.Dense(OUTPUTS, in_units=24)]
    model = net(door.seed, dense[0], nn.Dropout(0.3), dense[1])
    trainer = door.trainer(model, **SGD)
    for number, (x, y) in enumerate(door.batches(5)):
        losses = []
        with autograd.record():
            for at, rank in enumerate(door.ranks()):
                mx.random.seed(10 * number + rank)
                own = slice(at * ROWS, (at + 1) * ROWS)
                losses.append(gluon.loss.L2Loss()(model(x[own]), y[own]).mean())
            loss = nd.add_n(*losses) / len(losses)
        loss.backward()
        trainer.step(1)
    return weights(model)


@right("a batch that fails in forward and is left out", "mxnet")
def failed_forward(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for number, (x, y) in enumerate(door.batches(5)):
        try:
            step(model, trainer, x[:, :-1] if number == 2 else x, y)
        except mx.MXNetError:
            continue
    return weights(model)


@right("parameters that no rank uses in a step", "mxnet")
def unused_by_all(door: Any) -> dict[str, Any]:
    """`ignore_stale_grad` leaves them as they are."""
    model = nn.HybridSequential(prefix="net_")
    model.add(*(nn.Dense(OUTPUTS, in_units=INPUTS, prefix=prefix) for prefix in ("one_", "two_")))
    mx.random.seed(door.seed)
    model.initialize(mx.init.Xavier())
    trainer = door.trainer(model, learning_rate=0.05)
    for number, (x, y) in enumerate(door.batches(6)):
        with autograd.record():
            loss = gluon.loss.L2Loss()(model[number // 2 % 2](x), y)
        loss.backward()
        trainer.step(len(x), ignore_stale_grad=True)
    return weights(model)


@right("ranks with different numbers of batches (join)", "mxnet")
def joined(door: Any) -> dict[str, Any]:
    """Who is done contributes zeros to the mean, and has the others' parameters at the end."""
    model = net(door.seed)
    trainer = door.trainer(model, learning_rate=0.02)
    counts = (6, 4)
    for number, (x, y) in enumerate(door.batches(6)):
        ranks = door.ranks()
        own = [slice(at * ROWS, (at + 1) * ROWS) for at, rank in enumerate(ranks) if number < counts[rank]]
        if not own:
            break
        with autograd.record():
            losses = [gluon.loss.L2Loss()(model(x[rows]), y[rows]).mean() for rows in own]
            loss = nd.add_n(*losses) / len(ranks)
        loss.backward()
        trainer.step(1)
    if door.name != "alone":
        nd.waitall()
        last = door.hvd.join()
        door.hvd.broadcast_parameters(model.collect_params(), root_rank=int(last))
    return weights(model)
