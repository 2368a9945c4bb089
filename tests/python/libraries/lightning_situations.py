"""One process that trains with Lightning in several ways, by its own strategy and by ours: prints what differs.

Two optimizers by hand, as of a GAN, accumulation, fit() twice, and a second fit() from a checkpoint.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import casync.lightning
import casync.torch as hvd
import lightning.pytorch as pl
import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[1])
warnings.simplefilter("ignore")


class Two(pl.LightningModule):
    """Two networks that are trained in turn."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.passes = passes
        self.maker, self.judge = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)

    def training_step(self, batch: torch.Tensor, number: int) -> None:
        for optimizer, loss in zip(self.optimizers(), (self.maker_loss, self.judge_loss), strict=True):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            for _ in range(self.passes):
                self.manual_backward(loss(batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def maker_loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.judge(self.maker(batch)) - 1).square().mean()

    def judge_loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.judge(self.maker(batch).detach()) + 1).square().mean() + (self.judge(batch) - 1).square().mean()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.02 / self.passes) for part in (self.maker, self.judge)]


class One(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return (self.layer(batch) - batch.flip(1)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


def data() -> Any:
    samples: Any = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(samples, batch_size=4)


def fit(model: pl.LightningModule, strategy: Any, checkpoint: Path | None = None, **settings: Any) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, **({"max_epochs": 1} | settings),
    )  # fmt: skip
    trainer.fit(model, data(), ckpt_path=None if checkpoint is None else str(checkpoint))
    return trainer


def ours(compression: Any = None) -> Any:
    return casync.lightning.CasyncStrategy(compression, find_unused_parameters=True)


def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max().detach()) for a, b in pairs)


def alike(model: torch.nn.Module) -> bool:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, sum(float(one.detach().double().sum()) for one in model.parameters()))
    return len(set(every)) == 1


def main() -> None:
    torch.set_num_threads(1)
    note: dict[str, Any] = {}
    for passes in (1, 2):
        mine, theirs = Two(passes), Two(passes)
        fit(theirs, "ddp_find_unused_parameters_true")
        fit(mine, ours("none"))
        note[f"two optimizers, {passes} passes"] = apart(mine, theirs)
    one, other = One(), One()
    for _ in range(2):
        fit(other, "ddp", accumulate_grad_batches=2)
        fit(one, ours("none"), accumulate_grad_batches=2)
    note["twice, with accumulation"] = apart(one, other)
    compressed = Two(1)
    fit(compressed, ours("always(onebit)"))
    note["alike"] = alike(compressed)
    # A run of two epochs, and one that resumes in the same process after the first.
    whole = One()
    fit(whole, ours("always(onebit)"), max_epochs=2)
    trainer = fit(half := One(), ours("always(onebit)"))
    trainer.save_checkpoint(FOLDER / "half.ckpt")
    fit(half, ours("always(onebit)"), FOLDER / "half.ckpt", max_epochs=2)
    note["resumed in one process"] = apart(whole, half)
    os.environ["CASYNC_COMPRESSION"] = "always(fp16)"
    hvd.shutdown()
    fit(One(), ours())
    note["by the variable"] = hvd.plans()["allreduce.layer.weight"].codec
    if dist.get_rank() == 0:
        print("NOTE " + json.dumps(note), flush=True)
    hvd.shutdown()
    os._exit(0)  # as in told.py


if __name__ == "__main__":
    main()
