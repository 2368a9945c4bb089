"""Programs with a loop of their own: learning rates, optimizers, accumulation, clipping, scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import OUTPUTS, net


@right("a learning-rate schedule made before the wrap", "optimizer hook backend local accelerate", codec="alike")
def schedule_before_the_wrap(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    model = door.model(model)
    optimizer = door.optimizer(optimizer, model)
    rates = []
    for x, y in door.batches(8):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    return {"rates": rates, **door.weights(model)}


@right("a learning-rate schedule made after the wrap", "optimizer hook backend fsdp2 local accelerate")
def schedule_after_the_wrap(door: Any) -> dict[str, Any]:
    """OneCycleLR changes the momentum as well."""
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    momenta = []
    for x, y in door.batches(10):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
        momenta.append(optimizer.param_groups[0]["momentum"])
        schedule.step()
    return {"momenta": momenta, **door.weights(model)}


@right("two optimizers that step after one backward", "optimizer hook backend fsdp2 accelerate")
def two_optimizers(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    layers = door.bare(model)
    optimizers = []
    for number, made in ((0, torch.optim.SGD), (2, torch.optim.AdamW)):
        optimizer = made(layers[number].parameters(), lr=0.02)
        named = layers[number].named_parameters(f"model1.{number}")
        optimizers.append(door.optimizer(optimizer, model, named_parameters=named))
    for x, y in door.batches(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        for optimizer in optimizers:
            optimizer.step()
    return door.weights(model)


@right("two models whose optimizers take turns (a GAN)", "optimizer hook backend fsdp2 accelerate", codec="alike")
def generator_and_critic(door: Any) -> dict[str, Any]:
    torch.manual_seed(door.seed)
    critic = door.model(nn.Sequential(nn.Linear(OUTPUTS, 12), nn.Tanh(), nn.Linear(12, 1)))
    of_critic = door.optimizer(torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.9)), critic)
    generator = door.model(net(door.seed))
    of_generator = door.optimizer(torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9)), generator)
    for noise, real in door.batches(6):
        of_critic.zero_grad()
        fake = generator(noise)
        said = critic(torch.cat([real, fake.detach()])).squeeze(1)
        truth = torch.cat([torch.ones(len(real)), torch.zeros(len(real))])
        door.backward(F.binary_cross_entropy_with_logits(said, truth))
        of_critic.step()

        of_generator.zero_grad()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        said = critic(fake).squeeze(1)
        door.backward(F.binary_cross_entropy_with_logits(said, torch.ones(len(real))))
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        of_generator.step()
    return door.weights(critic, generator)


@right("two models and one optimizer", "optimizer hook backend fsdp2 local accelerate")
def encoder_and_decoder(door: Any) -> dict[str, Any]:
    encoder = door.model(nn.Sequential(*net(door.seed)[:2]))
    decoder = door.model(nn.Sequential(*net(door.seed)[2:]))
    both = nn.ModuleDict({"encoder": door.bare(encoder), "decoder": door.bare(decoder)})
    optimizer = torch.optim.SGD(both.parameters(), lr=0.05, momentum=0.9)
    named = [*encoder.named_parameters("model1"), *decoder.named_parameters("model2")]
    optimizer = door.optimizer(optimizer, both, named_parameters=named)
    for x, y in door.batches(6):
        optimizer.zero_grad()
        door.backward(F.mse_loss(decoder(encoder(x)), y))
        optimizer.step()
    return door.weights(encoder, decoder)


@right("optimizers of many kinds", "optimizer hook backend fsdp2 accelerate", codec="alike")
def many_kinds(door: Any) -> dict[str, Any]:
    """Groups with rates of their own, and options that newer releases have added."""
    found = {}
    kinds: dict[str, Any] = {
        "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True, foreach=True),
        "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.005, momentum=0.5, centered=True),
        "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05),
        "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True, maximize=False),
        "fused": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01), fused=True),
    }
    for name, make in kinds.items():
        if name == "fused" and door.of == "fsdp2":  # it has no fused step of DTensors in torch 2.13
            make = kinds["adamw"]
        model = door.model(net(door.seed))
        layers = door.bare(model)
        groups = [{"params": layers[0].parameters(), "weight_decay": 0.1}, {"params": layers[2].parameters()}]
        optimizer = door.optimizer(make(groups), model)
        for x, y in door.batches(4):
            optimizer.zero_grad(set_to_none=False)
            door.backward(F.mse_loss(model(x), y))
            optimizer.step()
        found |= {f"{name}.{key}": value for key, value in door.weights(model).items()}
    return found


@right("gradient accumulation", "optimizer hook backend fsdp2 local accelerate")
def accumulation(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    more = {"backward_passes_per_step": 2} if door.name == "optimizer" else {}
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, **more)
    optimizer.zero_grad()
    for number, (x, y) in enumerate(door.batches(12), 1):
        with door.pass_of(model, is_last=number % 2 == 0):
            door.backward(F.mse_loss(model(x), y) / 2)
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return door.weights(model)


@right("gradient accumulation over numbers of batches that vary", "optimizer hook backend fsdp2 local accelerate")
def accumulation_that_varies(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    batches = door.batches(14)
    for count in (1, 3, 2, 1, 1, 4, 2):
        optimizer.zero_grad()
        door.passes(optimizer, count)
        for number in range(count):
            x, y = next(batches)
            with door.pass_of(model, is_last=number == count - 1):
                door.backward(F.mse_loss(model(x), y) / count)
        optimizer.step()
    return door.weights(model)


@right("clipping of gradients, by norm and by value", "optimizer hook backend fsdp2 accelerate", codec="alike")
def clipping(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    norms = []
    for x, y in door.batches(6):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        with door.reduced(optimizer):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
    return {"norms": torch.stack(norms), **door.weights(model)}


@right("a GradScaler, with steps that are skipped", "optimizer hook backend fsdp2", codec="alike")
def scaler_that_skips(door: Any) -> dict[str, Any]:
    """One rank's loss overflows in two of the steps."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    model = door.model(net(door.seed), scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = door.optimizer(optimizer, model, scaler=scaler)
    scales = []
    for number, (x, y) in enumerate(door.batches(9)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if number in (2, 6) and door.has(1):
            loss = loss * float("inf")
        door.backward(scaler.scale(loss))
        with door.reduced(optimizer):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"scales": scales, **door.weights(model)}


@right("autocast to bfloat16", "optimizer hook backend fsdp2 local accelerate", beside="gloo")
def autocast(door: Any) -> dict[str, Any]:
    model = door.model(net(0))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.02), model)
    for x, y in door.batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            said = model(x)
        door.backward(F.mse_loss(said.float(), y))
        optimizer.step()
    return door.weights(model)


@right("hooks of an optimizer's step", "optimizer hook backend fsdp2 accelerate", codec="alike")
def step_hooks(door: Any) -> dict[str, Any]:
    """One before the step sees the mean, and clips; one after it keeps a moving average of the parameters."""
    return hooked_steps(door, lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.2))


def hooked_steps(door: Any, change: Callable[[nn.Module], None]) -> dict[str, Any]:
    """The hook before the step has `change` change the gradients. They go on after the optimizer has loaded a state."""
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    average = [torch.zeros_like(parameter) for parameter in model.parameters()]
    calls = [0, 0]

    def before(*_: Any) -> None:
        calls[0] += 1
        change(model)

    def follow(*_: Any) -> None:
        calls[1] += 1
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.5)

    hooked = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has no hooks
    hooked.register_step_pre_hook(before)
    hooked.register_step_post_hook(follow)
    for number, (x, y) in enumerate(door.batches(8)):
        if number == 4:
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    found = {f"average{n}": one.full_tensor() if hasattr(one, "full_tensor") else one for n, one in enumerate(average)}
    return {"calls": calls, **found, **door.weights(model)}


@right("LBFGS, and other optimizers that call a closure", "optimizer hook backend fsdp2 accelerate", codec="alike")
def closures(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4), model)
    losses = []
    for x, y in door.batches(3):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            door.backward(loss)
            losses.append(door.mean(loss))
            return losses[-1]

        optimizer.step(closure)
    return {"losses": torch.stack(losses), **door.weights(model)}


@right("gradients that stay in place (zero_grad(set_to_none=False))", "optimizer hook backend fsdp2 local accelerate")
def gradients_in_place(door: Any) -> dict[str, Any]:
    more = {"gradient_as_bucket_view": True} if door.name in ("hook", "backend") else {}
    model = door.model(net(door.seed), **more)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    for x, y in door.batches(6):
        model.zero_grad(set_to_none=False)
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


@right(
    "several steps with one gradient, and steps without a backward",
    "optimizer hook backend fsdp2 local accelerate",
    codec="alike",
)
def steps_without_backward(door: Any) -> dict[str, Any]:
    """As where a script steps once more by what is in the gradients."""
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for x, y in door.batches(4):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        with door.reduced(optimizer):
            optimizer.step()
            optimizer.step()
    return door.weights(model)
