"""Local SGD and DiLoCo through Lightning on two ranks, beside a simulation: `relaxed_lightning.py FOLDER`."""

import copy
import functools
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
from lightning.pytorch.callbacks import ModelCheckpoint
from simulated import ROWS, apart, model, samples, sgd, share, train  # type: ignore[import-not-found]
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(sys.argv[1])
DATA = samples(2 * ROWS * 10)  # ten steps
warnings.simplefilter("ignore")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = model(int(os.environ["RANK"]))
        self.seen: list[Any] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return F.mse_loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        if number == 0 and not self.trainer.sanity_checking:
            self.seen.append(copy.deepcopy(self.model.state_dict()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self.model)


def fit(strategy: Any, epochs: int = 1, checkpoint: Path | None = None, **settings: Any) -> tuple[Module, pl.Trainer]:
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, max_epochs=epochs,
        **({"enable_checkpointing": False} | settings),
    )  # fmt: skip
    rank = int(os.environ["RANK"])
    module, loader = Module(), DataLoader(TensorDataset(*(column[rank::2] for column in DATA)), batch_size=ROWS)
    trainer.fit(module, loader, loader, ckpt_path=None if checkpoint is None else str(checkpoint))
    return module, trainer


def alike(module: torch.nn.Module) -> bool:
    every: list[Any] = [None] * 2
    dist.all_gather_object(every, [values.tolist() for values in module.state_dict().values()])
    return bool(every[0] == every[1])


def main() -> None:
    torch.set_num_threads(1)
    note: dict[str, float] = {}
    shares = [share(DATA, rank, 2) for rank in range(2)]
    local, _ = fit(casync.lightning.LocalSGDStrategy(4, process_group_backend="gloo"))
    wanted, rounds = train(shares, 4)
    note["local SGD"] = apart(local.model.state_dict(), wanted)
    note["validation sees the last round"] = apart(local.seen[-1], rounds[-2])

    settings: Any = {"sync_every": 3, "compression": "always(onebit)", "fragment_sync_delay": 1}
    outer = functools.partial(torch.optim.SGD, lr=0.5, momentum=0.5, nesterov=True)
    exact, _ = fit(casync.lightning.DiLoCoStrategy(3, outer_optimizer=outer), accumulate_grad_batches=2)
    note["DiLoCo with accumulation"] = apart(exact.model.state_dict(), train(shares, 3, (0.5, 0.5), passes=2)[0])

    whole, _ = fit(
        casync.lightning.DiLoCoStrategy(**settings), epochs=2, enable_checkpointing=True,
        callbacks=[ModelCheckpoint(FOLDER, filename="{epoch}", save_top_k=-1)],
    )  # fmt: skip
    saved = torch.load(FOLDER / "epoch=0.ckpt", weights_only=True)["state_dict"]
    note["a checkpoint has what validation saw"] = apart(
        {name.removeprefix("model."): values for name, values in saved.items()}, whole.seen[0]
    )
    again, trainer = fit(casync.lightning.DiLoCoStrategy(**settings), epochs=2, checkpoint=FOLDER / "epoch=0.ckpt")
    note["resumed"] = apart(again.model.state_dict(), whole.model.state_dict())
    note["not alike"] = 0.0 if all(alike(module) for module in (local, exact, whole, again)) else 1.0
    trainer.validate(again, DataLoader(TensorDataset(*DATA), batch_size=ROWS), verbose=False)
    note["validated after fit"] = apart(again.seen[-1], again.model.state_dict())
    if dist.get_rank() == 0:
        print("NOTE " + json.dumps(note), flush=True)
    hvd.shutdown()
    os._exit(0)  # as in told.py


if __name__ == "__main__":
    main()
