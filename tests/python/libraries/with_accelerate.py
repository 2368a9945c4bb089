"""One process that trains with Accelerate: `with_accelerate.py CODEC FOLDER [scaler|two]`; "ddp" leaves CaSync out."""

import sys
from typing import Any

import torch
from accelerate import Accelerator
from told import tell  # type: ignore[import-not-found]  # beside this script

CODEC, WORDS = sys.argv[1], sys.argv[3:]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    if CODEC != "ddp":
        import casync.accelerate

        accelerator.ddp_handler = casync.accelerate.ddp_kwargs(compression=CODEC)
    if "two" in WORDS:
        two_models(accelerator)
    if "scaler" in WORDS:  # which Accelerate makes on a GPU alone
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
    teacher = torch.randn(64, 256)
    model = torch.nn.Linear(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    samples: Any = torch.randn(12800, 256)
    data: Any = torch.utils.data.DataLoader(samples, batch_size=32)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        optimizer.zero_grad()
        loss = (model(batch) - batch @ teacher.T).square().mean()
        accelerator.backward(loss)
        optimizer.step()
    tell(CODEC, float(loss), model.parameters())


def two_models(accelerator: Accelerator) -> None:
    """Whose parameters have the same names, in one backward pass and in turns; and then two others in their place."""
    teacher = torch.randn(64, 256)
    for _ in range(2):
        models: Any = [torch.nn.Sequential(torch.nn.Linear(256, 64)) for _ in range(2)]
        optimizers: Any = [torch.optim.SGD(model.parameters(), lr=2.0) for model in models]
        first = accelerator.prepare(models[0])
        accelerator.prepare_model(torch.nn.Linear(256, 64), evaluation_mode=True)  # which does not count
        second, *optimizers = accelerator.prepare(models[1], *optimizers)
        for step in range(200):
            samples = torch.randn(32, 256)
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses = [(model(samples) - samples @ teacher.T).square().mean() for model in (first, second)]
            if step % 2:
                accelerator.backward(losses[0] + losses[1])
            else:
                for loss in losses:
                    accelerator.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
        accelerator.free_memory()
    if CODEC != "ddp":
        import casync.torch as hvd

        codecs = {name: plan.codec for name, plan in hvd.plans().items()}
        places = ("", "ddp1.", "ddp2.", "ddp3.")
        kept = {f"allreduce.{place}0.weight" for place in places}
        assert set(codecs) == kept | {f"allreduce.{place}0.bias" for place in places}, codecs
        assert all(codecs[name] == CODEC for name in kept), codecs
    tell(CODEC, float(max(losses)), [*first.parameters(), *second.parameters()])


if __name__ == "__main__":
    main()
