"""Programs of TensorFlow: loops of one's own in a `tf.function`, with a DistributedGradientTape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests.python.programs.cells import refused, right
from tests.python.programs.doors_tensorflow import INPUTS, OUTPUTS, ROWS, whole
from tests.python.programs.ends import broken, die
from tests.python.programs.in_keras import net, weights


def mse(said: Any, wanted: Any) -> Any:
    return tf.reduce_mean(tf.square(said - tf.cast(wanted, said.dtype)))


def training(
    door: Any, model: Any, optimizer: Any, *, of: Callable[[], list[Any]] | None = None, change: Any = None
) -> Callable[..., Any]:
    """A step as the guides write it. `of`: the variables; `change`: what is done to the mean gradients."""
    of = of or (lambda: model.trainable_variables)

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        variables = of()
        with tf.GradientTape() as tape:
            loss = mse(model(x, training=True), y)
        gradients = door.tape(tape).gradient(loss, variables)
        if change is not None:
            gradients = change(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def train(door: Any, model: Any, optimizer: Any, steps: int = 5, **more: Any) -> dict[str, Any]:
    door.begin(model.variables)
    step = training(door, model, optimizer, **more)
    for x, y in door.batches(steps):
        step(x, y)
    return weights(model)


def sgd(**more: Any) -> Any:
    return optimizers.SGD(0.05, momentum=0.9, **more)


@right("a learning-rate schedule made before the wrap", "tensorflow")
def schedule_before(door: Any) -> dict[str, Any]:
    rate = optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return train(door, net(door.seed), optimizers.SGD(rate, momentum=0.9), steps=6)


@right("a learning-rate schedule made after the wrap", "tensorflow")
def schedule_after(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    for x, y in door.batches(6):
        step(x, y)
        optimizer.learning_rate = optimizer.learning_rate * 0.7
    return weights(model)


@right("two optimizers that step after one backward", "tensorflow")
def two_optimizers(door: Any) -> dict[str, Any]:
    model, first, last = net(door.seed), sgd(), optimizers.AdamW(0.02)
    door.begin(model.variables)

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mse(model(x), y)
        of = [layer.trainable_variables for layer in model.layers]
        gradients = door.tape(tape).gradient(loss, of)
        for optimizer, some, variables in zip((first, last), gradients, of, strict=True):
            optimizer.apply_gradients(zip(some, variables, strict=True))

    for x, y in door.batches(5):
        step(x, y)
    return weights(model)


@right("two models whose optimizers take turns (a GAN)", "tensorflow")
def gan(door: Any) -> dict[str, Any]:
    """As TensorFlow's own DCGAN: two tapes, one function."""
    generator = net(door.seed)
    critic = keras.Sequential([keras.Input((OUTPUTS,)), layers.Dense(12, "tanh", name="judge"), layers.Dense(1)])
    of_generator, of_critic = optimizers.Adam(0.01), optimizers.Adam(0.01)
    door.begin(generator.variables, critic.variables)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function(autograph=False)
    def step(noise: Any, real: Any) -> None:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = generator(noise, training=True)
            said, of_fake = critic(real, training=True), critic(fake, training=True)
            loss = cross_entropy(tf.ones_like(of_fake), of_fake)
            critics = cross_entropy(tf.ones_like(said), said) + cross_entropy(tf.zeros_like(of_fake), of_fake)
        ours = door.tape(first).gradient(loss, generator.trainable_variables)
        theirs = door.tape(second).gradient(critics, critic.trainable_variables)
        of_generator.apply_gradients(zip(ours, generator.trainable_variables, strict=True))
        of_critic.apply_gradients(zip(theirs, critic.trainable_variables, strict=True))

    for noise, real in door.batches(5):
        step(noise, real)
    return weights(generator, critic)


@right("two models and one optimizer", "tensorflow")
def two_models(door: Any) -> dict[str, Any]:
    whole = net(door.seed)
    encoder, decoder = keras.Sequential(whole.layers[:1]), keras.Sequential(whole.layers[1:])
    both = keras.Sequential([keras.Input((INPUTS,)), encoder, decoder])
    return train(door, both, sgd())


@right("optimizers of many kinds", "tensorflow")
def many_kinds(door: Any) -> dict[str, Any]:
    found = {}
    for kind in (optimizers.AdamW, optimizers.RMSprop, optimizers.Adagrad):
        found |= {f"{kind.__name__}.{k}": v for k, v in train(door, net(door.seed), kind(0.01), steps=3).items()}
    return found


def accumulated(door: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """Gradients add up in variables, and what has added up is reduced."""
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    batches = door.batches(sum(counts))
    for count in counts:
        with tf.GradientTape() as tape:
            losses = [mse(model(x), y) for x, y in (next(batches) for _ in range(count))]
            loss = tf.add_n(losses) / count
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@right("gradient accumulation", "tensorflow")
def accumulation(door: Any) -> dict[str, Any]:
    return accumulated(door, (2, 2, 2))


@right("gradient accumulation over numbers of batches that vary", "tensorflow")
def accumulation_that_varies(door: Any) -> dict[str, Any]:
    return accumulated(door, (1, 3, 2, 1))


@right("clipping of gradients, by norm and by value", "tensorflow")
def clipping(door: Any) -> dict[str, Any]:
    def clip(gradients: list[Any]) -> list[Any]:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
        return [tf.clip_by_value(one, -0.05, 0.05) for one in clipped]

    return train(door, net(door.seed), sgd(), change=clip)


@right("a GradScaler, with steps that are skipped", "tensorflow")
def scaler_that_skips(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    scaler = optimizers.LossScaleOptimizer(sgd(), initial_scale=256.0, dynamic_growth_steps=3)
    scaler.build(model.trainable_variables)
    door.begin(model.variables)

    @tf.function(autograph=False)
    def step(x: Any, y: Any, factor: Any) -> None:
        with tf.GradientTape() as tape:
            loss = scaler.scale_loss(mse(model(x), y) * factor)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        scaler.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    scales = []
    for number, (x, y) in enumerate(door.batches(6)):
        step(x, y, tf.constant(np.inf if number == 2 and door.has(1) else 1.0, tf.float32))
        scales.append(float(scaler.dynamic_scale))
    return {"scales": scales, **weights(model)}


@right("a checkpoint of rank 0, from which all ranks go on", "tensorflow")
def resumed(door: Any) -> dict[str, Any]:
    """tf.train.Checkpoint on rank 0, and a broadcast; the reference is not interrupted."""
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    optimizer.build(model.trainable_variables)
    batches = door.batches(6)
    step = training(door, model, optimizer)
    for _ in range(3):
        step(*next(batches))
    if door.name != "alone":
        path = str(door.job.folder / f"tf-{door.codec != 'none'}")
        if door.rank == 0:
            tf.train.Checkpoint(model=model, optimizer=optimizer).write(path)
        model, optimizer = net(17 + door.rank), sgd()
        optimizer.build(model.trainable_variables)
        if door.rank == 0:
            tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)
        door.begin(model.variables, optimizer.variables)
        step = training(door, model, optimizer)
    for _ in range(3):
        step(*next(batches))
    return weights(model)


@right("moving averages of the weights (AveragedModel)", "tensorflow")
def averaged(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    average = [tf.Variable(one) for one in model.trainable_variables]
    step = training(door, model, optimizer)
    for x, y in door.batches(5):
        step(x, y)
        for mean, now in zip(average, model.trainable_variables, strict=True):
            mean.assign(0.7 * mean + 0.3 * tf.convert_to_tensor(now))
    return {**weights(model), **{f"average{n}": one.numpy() for n, one in enumerate(average)}}


@right("activation checkpointing", "tensorflow")
def activation_checkpointing(door: Any) -> dict[str, Any]:
    """tf.recompute_grad."""
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    hidden = tf.recompute_grad(lambda x: model.layers[0](x))
    for x, y in door.batches(4):
        with tf.GradientTape() as tape:
            loss = mse(model.layers[1](hidden(tf.constant(x))), y)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@refused(
    "a compiled model (torch.compile, XLA, hybridize)", "tensorflow",
    error="InvalidArgumentError|UnimplementedError|NotAvailableError|InternalError", says="jit_compile|XLA", batches=1,
    why="XLA compiles no operation that talks to other ranks. Everything else of a graph works",
)  # fmt: skip
def compiled(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = tf.function(training(door, model, optimizer), jit_compile=True)
    for x, y in door.batches(2):
        step(x, y)
    return weights(model)


@right("a last batch that is shorter on some ranks", "tensorflow")
def short_last_batch(door: Any) -> dict[str, Any]:
    """The reference is the mean of the ranks' means."""
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    for number, batch in enumerate(whole(4, door.size)):
        with tf.GradientTape() as tape:
            losses = []
            for rank, (x, y) in zip(door.ranks(), door.shares(batch), strict=True):
                rows = 3 if number == 3 and rank == 1 else ROWS
                losses.append(mse(model(x[:rows]), y[:rows]))
            loss = tf.add_n(losses) / len(losses)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@right("dropout, with a seed for each rank", "tensorflow")
def dropout(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    for number, batch in enumerate(whole(4, door.size)):
        with tf.GradientTape() as tape:
            losses = []
            for rank, (x, y) in zip(door.ranks(), door.shares(batch), strict=True):
                kept = tf.nn.experimental.stateless_dropout(model.layers[0](x), 0.3, seed=(number, rank))
                losses.append(mse(model.layers[1](kept), y))
            loss = tf.add_n(losses) / len(losses)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@right("evaluation on rank 0 only", "tensorflow")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    for x, y in door.batches(4):
        step(x, y)
        if door.has(0):
            mse(model(tf.ones((3, INPUTS))), tf.ones((3, OUTPUTS)))
    return weights(model)


@right("sums and means of metrics between steps", "tensorflow", codec="exact")
def metrics(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    found = []
    for number, (x, y) in enumerate(door.batches(4)):
        step(x, y)
        every = [tf.range(3000.0) * (number + 1) * (rank + 1) for rank in door.ranks()]
        found.append(door.mean(tf.add_n(every) / len(every)).numpy())
    return {"counts": np.stack(found)}


@right("gradients of gradients (a penalty on them)", "tensorflow")
def gradient_penalty(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), optimizers.SGD(0.02)
    door.begin(model.variables)
    for x, y in door.batches(4):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                given = tf.constant(x)
                inner.watch(given)
                said = model(given)
                total = tf.reduce_sum(said)
            slope = inner.gradient(total, given)
            loss = mse(said, y) + 0.1 * tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1))
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@right("the session ends and begins again", "tensorflow")
def begun_again(door: Any) -> dict[str, Any]:
    """The graph is made anew, as the manual wants it."""
    found = {}
    for life in range(2):
        result = train(door, net(door.seed), sgd(), steps=3)
        found |= {f"{life}.{name}": value for name, value in result.items()}
        door.again()
    return found


def failing(door: Any, fail: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    for number, (x, y) in enumerate(door.batches(6)):
        if number == 3 and door.rank == 1:
            fail()
        step(x, y)
    return {}


@right(
    "an exception on one rank", "tensorflow", apart=True, ends=(1, 1), says="rank 1: ValueError: the labels of rank 1"
)
def exception(door: Any) -> dict[str, Any]:
    return failing(door, broken)


@right("a rank that is killed", "tensorflow", apart=True, ends=(1, -9), says="rank 1")
def killed(door: Any) -> dict[str, Any]:
    return failing(door, die)


@right("several steps with one gradient, and steps without a backward", "tensorflow")
def steps_without_backward(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    for x, y in door.batches(4):
        with tf.GradientTape() as tape:
            loss = mse(model(x), y)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        for _ in range(2):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return weights(model)


@right("a state that the optimizer loads in the middle of training", "tensorflow")
def state_loaded(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    optimizer.build(model.trainable_variables)
    step = training(door, model, optimizer)
    state = [*model.variables, *optimizer.variables]
    for number, (x, y) in enumerate(door.batches(6)):
        if number == 2:
            best = [one.numpy() for one in state]
        if number == 4:
            for variable, value in zip(state, best, strict=True):
                variable.assign(value)
        step(x, y)
    return weights(model)


@right("copies of a model (deepcopy, torch.save)", "tensorflow")
def copied(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    batches = door.batches(5)
    for _ in range(3):
        step(*next(batches))
    best = keras.models.clone_model(model)
    best.set_weights(model.get_weights())
    for _ in range(2):
        step(*next(batches))
    return weights(model, best)


@right("weights that are averaged now and then (local SGD)", "tensorflow", codec="exact")
def local_sgd(door: Any) -> dict[str, Any]:
    models = [net(0) for _ in door.ranks()]
    every = [(model, optimizers.SGD(0.05)) for model in models]
    for number, batch in enumerate(whole(6, door.size)):
        for (model, optimizer), (x, y) in zip(every, door.shares(batch), strict=True):
            with tf.GradientTape() as tape:
                loss = mse(model(x), y)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        for variables in zip(*(model.trainable_variables for model in models), strict=True) if number % 2 else ():
            mean = door.mean(tf.add_n([tf.convert_to_tensor(one) for one in variables]) / len(variables))
            for variable in variables:
                variable.assign(mean)
    return weights(models[0])


@right("a batch that fails in forward and is left out", "tensorflow")
def failed_forward(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    step = training(door, model, optimizer)
    for number, (x, y) in enumerate(door.batches(5)):
        try:
            step(x[:, :-1] if number == 2 else x, y)
        except ValueError:
            continue
    return weights(model)


@right("ranks with different numbers of batches (join)", "tensorflow")
def joined(door: Any) -> dict[str, Any]:
    """Who is done contributes zeros to the mean, and has the others' parameters at the end."""
    model, optimizer = net(door.seed), optimizers.SGD(0.02)
    door.begin(model.variables)
    counts = (6, 4)
    for number, batch in enumerate(whole(6, door.size)):
        shares = zip(door.ranks(), door.shares(batch), strict=True)
        own = [(x, y) for rank, (x, y) in shares if number < counts[rank]]
        if not own:
            break
        with tf.GradientTape() as tape:
            loss = tf.add_n([mse(model(x), y) for x, y in own]) / len(door.ranks())
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if door.name != "alone":
        last = door.hvd.join()
        door.hvd.broadcast_variables(model.variables, root_rank=int(last))
    return weights(model)


@right("groups of ranks, each with a model of its own", "tensorflow", codec="none")
def groups(door: Any) -> dict[str, Any]:
    """Each rank is a group here."""
    model, optimizer = net(door.job.rank), sgd()
    sets = [] if door.name == "alone" else [door.hvd.add_process_set([rank]) for rank in range(door.size)]
    for batch in whole(4, door.size):
        x, y = (np.split(column, door.size)[door.job.rank] for column in batch)
        with tf.GradientTape() as tape:
            loss = mse(model(x), y)
        if sets:
            tape = door.hvd.DistributedGradientTape(tape, process_set=sets[door.rank])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {f"own.{name}": value for name, value in weights(model).items()}
