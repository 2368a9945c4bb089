"""One process that trains with Lightning: `with_lightning.py CODEC FOLDER [resume]`; "ddp": Lightning's strategy."""

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from told import tell  # type: ignore[import-not-found]  # beside this script

CODEC, FOLDER = sys.argv[1], Path(sys.argv[2])
RESUMES = "resume" in sys.argv
warnings.simplefilter("ignore")


class Student(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.teacher = [torch.randn(64, 256)]
        self.layer = torch.nn.Linear(256, 64)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        loss = (self.layer(batch) - batch @ self.teacher[0].T).square().mean()
        self.last = loss.detach()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=2.0)


def main() -> None:
    torch.set_num_threads(1)
    strategy: Any = "ddp"
    if CODEC != "ddp":
        import casync.lightning

        strategy = casync.lightning.CasyncStrategy(CODEC)
    samples: Any = torch.randn(6400, 256, generator=torch.Generator().manual_seed(0))
    data: Any = torch.utils.data.DataLoader(samples, batch_size=32)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=3 if RESUMES else 2,
        callbacks=[ModelCheckpoint(FOLDER, filename="last")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Student()
    trainer.fit(model, data, ckpt_path=str(FOLDER / "last.ckpt") if RESUMES else None)
    tell(CODEC, float(model.last), model.parameters())


if __name__ == "__main__":
    main()
