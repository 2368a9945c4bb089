"""Programs of MXNet's gluon, with a DistributedTrainer."""

from __future__ import annotations

from typing import Any

import numpy as np
from casync.mxnet.loading import mx

from tests.python.programs.cells import right
from tests.python.programs.doors_mxnet import INPUTS, OUTPUTS, ROWS
from tests.python.programs.ends import broken, die

gluon, nd, autograd = mx.gluon, mx.nd, mx.autograd


nn = gluon.nn


def net(seed: int, *layers: Any, dtype: str = "float32") -> Any:
    mx.random.seed(seed)
    np.random.seed(seed)
    found = nn.HybridSequential(prefix="net_")
    with found.name_scope():
        for layer in layers or (nn.Dense(24, activation="tanh", in_units=INPUTS), nn.Dense(OUTPUTS, in_units=24)):
            found.add(layer)
    found.cast(dtype)
    found.initialize(mx.init.Xavier())
    return found


def weights(*nets: Any) -> dict[str, Any]:
    return {
        f"{n}.{at}": param.data().asnumpy()
        for n, one in enumerate(nets)
        for at, param in enumerate(one.collect_params().values())
    }


def step(model: Any, trainer: Any, x: Any, y: Any) -> None:
    with autograd.record():
        loss = gluon.loss.L2Loss()(model(x), y)
    loss.backward()
    trainer.step(len(x))


def train(door: Any, model: Any, trainer: Any, steps: int = 5) -> dict[str, Any]:
    for x, y in door.batches(steps):
        step(model, trainer, x, y)
    return weights(model)


SGD = {"learning_rate": 0.05, "momentum": 0.9}


@right("a learning-rate schedule made before the wrap", "mxnet")
def schedule_before(door: Any) -> dict[str, Any]:
    rates = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)
    model = net(door.seed)
    return train(door, model, door.trainer(model, learning_rate=0.1, momentum=0.9, lr_scheduler=rates), steps=6)


@right("a learning-rate schedule made after the wrap", "mxnet")
def schedule_after(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(6):
        step(model, trainer, x, y)
        trainer.set_learning_rate(trainer.learning_rate * 0.7)
    return {"rate": trainer.learning_rate, **weights(model)}


@right("two optimizers that step after one backward", "mxnet")
def two_optimizers(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainers = [door.trainer(model[0], **SGD), door.trainer(model[1], "adam", learning_rate=0.02)]
    for x, y in door.batches(5):
        with autograd.record():
            loss = gluon.loss.L2Loss()(model(x), y)
        loss.backward()
        for trainer in trainers:
            trainer.step(len(x))
    return weights(model)


@right("two models whose optimizers take turns (a GAN)", "mxnet")
def gan(door: Any) -> dict[str, Any]:
    generator = net(door.seed)
    critic = net(
        door.seed + 7, nn.Dense(12, activation="tanh", in_units=OUTPUTS, prefix="judge_"), nn.Dense(1, in_units=12)
    )
    of_generator = door.trainer(generator, "adam", learning_rate=0.01)
    of_critic = door.trainer(critic, "adam", learning_rate=0.01)
    loss_of = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    for noise, real in door.batches(5):
        with autograd.record():
            fake = generator(noise)
            loss = loss_of(critic(real), nd.ones((len(real), 1))) + loss_of(
                critic(fake.detach()), nd.zeros((len(real), 1))
            )
        loss.backward()
        of_critic.step(len(real))
        with autograd.record():
            loss = loss_of(critic(generator(noise)), nd.ones((len(real), 1)))
        loss.backward()
        of_generator.step(len(real))
    return weights(generator, critic)


@right("two models and one optimizer", "mxnet")
def two_models(door: Any) -> dict[str, Any]:
    encoder = net(door.seed, nn.Dense(24, activation="tanh", in_units=INPUTS, prefix="encoder_"))
    decoder = net(door.seed, nn.Dense(OUTPUTS, in_units=24, prefix="decoder_"))
    both = net(door.seed, encoder, decoder)
    return train(door, both, door.trainer(both, **SGD))


@right("optimizers of many kinds", "mxnet")
def many_kinds(door: Any) -> dict[str, Any]:
    found = {}
    for kind in ("adam", "rmsprop", "adagrad", "nag"):
        model = net(door.seed)
        trainer = door.trainer(model, kind, learning_rate=0.01, wd=0.01)
        found |= {f"{kind}.{name}": value for name, value in train(door, model, trainer, 3).items()}
    return found


def accumulated(door: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """grad_req = "add", as gluon's own guide has it."""
    model = net(door.seed)
    model.collect_params().setattr("grad_req", "add")
    trainer = door.trainer(model, **SGD)
    batches = door.batches(sum(counts))
    for count in counts:
        for _ in range(count):
            x, y = next(batches)
            with autograd.record():
                loss = gluon.loss.L2Loss()(model(x), y)
            loss.backward()
        trainer.step(len(x) * count)
        for param in model.collect_params().values():
            param.zero_grad()
    return weights(model)


@right("gradient accumulation", "mxnet")
def accumulation(door: Any) -> dict[str, Any]:
    return accumulated(door, (2, 2, 2))


@right("gradient accumulation over numbers of batches that vary", "mxnet")
def accumulation_that_varies(door: Any) -> dict[str, Any]:
    return accumulated(door, (1, 3, 2, 1))


@right("clipping of gradients, by norm and by value", "mxnet")
def clipping(door: Any) -> dict[str, Any]:
    """`allreduce_grads`, then the clipping, then `update`."""
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(5):
        with autograd.record():
            loss = gluon.loss.L2Loss()(model(x), y).mean()
        loss.backward()
        trainer.allreduce_grads()
        gluon.utils.clip_global_norm([param.grad() for param in model.collect_params().values()], 0.2)
        trainer.update(1)
    return weights(model)


@right("parameters that are frozen later", "mxnet")
def frozen_later(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    train(door, model, trainer, 3)
    model[0].collect_params().setattr("grad_req", "null")
    return train(door, model, trainer, 3)


@right("parameters that are unfrozen later", "mxnet")
def unfrozen_later(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    model[0].collect_params().setattr("grad_req", "null")
    trainer = door.trainer(model, **SGD)
    train(door, model, trainer, 3)
    model[0].collect_params().setattr("grad_req", "write")
    return train(door, model, trainer, 3)


@right("a checkpoint of rank 0, from which all ranks go on", "mxnet")
def resumed(door: Any) -> dict[str, Any]:
    """The reference is not interrupted."""
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    batches = door.batches(6)
    for _ in range(3):
        step(model, trainer, *next(batches))
    if door.name != "alone":
        place = str(door.job.folder / f"mxnet-{door.codec != 'none'}")
        if door.rank == 0:
            model.save_parameters(f"{place}.params")
            trainer.save_states(f"{place}.states")
        nd.waitall()
        door.hvd.barrier()
        model = net(17 + door.rank)
        model.load_parameters(f"{place}.params")
        trainer = door.trainer(model, **SGD)
        trainer.load_states(f"{place}.states")
    for _ in range(3):
        step(model, trainer, *next(batches))
    return weights(model)


@right("a last batch that is shorter on some ranks", "mxnet")
def short_last_batch(door: Any) -> dict[str, Any]:
    """The reference is the mean of the ranks' means."""
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for number, (x, y) in enumerate(door.batches(4)):
        ranks = door.ranks()
        with autograd.record():
            losses = []
            for at, rank in enumerate(ranks):
                own = slice(at * ROWS, at * ROWS + (3 if number == 3 and rank == 1 else ROWS))
                losses.append(gluon.loss.L2Loss()(model(x[own]), y[own]).mean())
            loss = nd.add_n(*losses) / len(ranks)
        loss.backward()
        trainer.step(1)
    return weights(model)


@right("evaluation on rank 0 only", "mxnet")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for x, y in door.batches(4):
        step(model, trainer, x, y)
        if 0 in door.ranks():
            gluon.loss.L2Loss()(model(nd.ones((3, INPUTS))), nd.ones((3, OUTPUTS))).asnumpy()
    return weights(model)


@right("sums and means of metrics between steps", "mxnet", codec="exact")
def metrics(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    found = []
    for number, (x, y) in enumerate(door.batches(4)):
        step(model, trainer, x, y)
        every = [nd.arange(3000) * (number + 1) * (rank + 1) for rank in door.ranks()]
        found.append(door.mean(nd.add_n(*every) / len(every)).asnumpy())
    return {"counts": np.stack(found)}


@right("a compiled model (torch.compile, XLA, hybridize)", "mxnet")
def hybridized(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    model.hybridize(static_alloc=True)
    return train(door, model, door.trainer(model, **SGD))


@right("moving averages of the weights (AveragedModel)", "mxnet")
def averaged(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    average = [param.data().copy() for param in model.collect_params().values()]
    for x, y in door.batches(5):
        step(model, trainer, x, y)
        average = [0.7 * a + 0.3 * p.data() for a, p in zip(average, model.collect_params().values(), strict=True)]
    return {**weights(model), **{f"average{n}": one.asnumpy() for n, one in enumerate(average)}}


@right("the session ends and begins again", "mxnet")
def begun_again(door: Any) -> dict[str, Any]:
    found = {}
    for life in range(2):
        model = net(door.seed)
        result = train(door, model, door.trainer(model, **SGD), steps=3)
        found |= {f"{life}.{name}": value for name, value in result.items()}
        door.again()
    return found


def failing(door: Any, fail: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    for number, (x, y) in enumerate(door.batches(6)):
        if number == 3 and door.rank == 1:
            fail()
        step(model, trainer, x, y)
        nd.waitall()
    return {}


@right("an exception on one rank", "mxnet", apart=True, ends=(1, 1), says="rank 1: ValueError: the labels of rank 1")
def exception(door: Any) -> dict[str, Any]:
    return failing(door, broken)


@right("a rank that is killed", "mxnet", apart=True, ends=(1, -9), says="rank 1")
def killed(door: Any) -> dict[str, Any]:
    return failing(door, die)


@right("parameters that are replaced by others", "mxnet")
def replaced(door: Any) -> dict[str, Any]:
    """Another head on the same body."""
    model = net(door.seed)
    train(door, model, door.trainer(model, **SGD), steps=3)
    head = nn.Dense(OUTPUTS, in_units=24, prefix="other_")
    head.initialize(mx.init.Constant(0.01))
    other = nn.HybridSequential(prefix="net_")
    other.add(model[0], head)
    return train(door, other, door.trainer(other, **SGD), steps=3)


@right("a state that the optimizer loads in the middle of training", "mxnet")
def state_loaded(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    place = str(door.job.folder / f"middle-{door.name}-{door.rank}-{door.codec != 'none'}")
    for number, (x, y) in enumerate(door.batches(6)):
        if number == 2:
            model.save_parameters(f"{place}.params")
            trainer.save_states(f"{place}.states")
        if number == 4:
            model.load_parameters(f"{place}.params")
            trainer.load_states(f"{place}.states")
        step(model, trainer, x, y)
    return weights(model)


@right("weights that are averaged now and then (local SGD)", "mxnet", codec="exact")
def local_sgd(door: Any) -> dict[str, Any]:
    models = [net(0) for _ in door.ranks()]
    trainers = [gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.05}) for model in models]
    for number, (x, y) in enumerate(door.batches(6)):
        for at, (model, trainer) in enumerate(zip(models, trainers, strict=True)):
            own = slice(at * ROWS, (at + 1) * ROWS)
            step(model, trainer, x[own], y[own])
        if number % 2:
            for params in zip(*(model.collect_params().values() for model in models), strict=True):
                mean = door.mean(nd.add_n(*(param.data() for param in params)) / len(params))
                for param in params:
                    param.set_data(mean)
    return weights(models[0])


@right("workers of a DataLoader, by fork", "mxnet", codec="none")
def forked_workers(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    trainer = door.trainer(model, **SGD)
    every = [(x.asnumpy(), y.asnumpy()) for x, y in door.batches(4)]
    rows = gluon.data.ArrayDataset(*(np.concatenate(columns) for columns in zip(*every, strict=True)))
    workers = 0 if door.name == "alone" else 1
    for x, y in gluon.data.DataLoader(rows, batch_size=len(every[0][0]), num_workers=workers):
        step(model, trainer, x, y)
    return weights(model)


@right("groups of ranks, each with a model of its own", "mxnet", codec="none")
def groups(door: Any) -> dict[str, Any]:
    """Each rank is a group here."""
    model = net(door.job.rank)
    if door.name == "alone":
        trainer = door.trainer(model, **SGD)
    else:
        sets = [door.hvd.add_process_set([rank]) for rank in range(door.size)]
        of_own = {"process_set": sets[door.rank]}
        trainer = door.hvd.DistributedTrainer(model.collect_params(), "sgd", SGD, **of_own)
    numbers = np.random.default_rng(door.job.rank)
    for _ in range(4):
        x = nd.array(numbers.standard_normal((ROWS, INPUTS)))
        step(model, trainer, x, nd.ones((ROWS, OUTPUTS)))
    return {f"own.{name}": value for name, value in weights(model).items()}
