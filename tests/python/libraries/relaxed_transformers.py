"""Local SGD and DiLoCo through the Trainer on two ranks, beside a simulation: `relaxed_transformers.py FOLDER`."""

import copy
import functools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import casync.torch as hvd
import casync.transformers
import simulated  # type: ignore[import-not-found]  # beside this script
import torch
import torch.distributed as dist
from simulated import ROWS, apart, samples, train
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

RANK, FOLDER = int(os.environ["RANK"]), Path(sys.argv[1])
DATA = samples(2 * ROWS * 10)  # ten steps
warnings.simplefilter("ignore")


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(DATA[0])

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": DATA[0][at], "labels": DATA[1][at]}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = simulated.model(RANK)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.inner(x)
        return {"loss": F.mse_loss(out, labels), "logits": out}


class Ordered(Trainer):
    """Without shuffling, as the simulation has it."""

    seen: Any = None

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(DATA[0])

    def evaluation_loop(self, *arguments: Any, **more: Any) -> Any:
        net: Any = self.model
        self.seen = copy.deepcopy(net.inner.state_dict())
        return super().evaluation_loop(*arguments, **more)


def trained(patch: Any, resumes: Any = None, **settings: Any) -> Any:
    made = {"output_dir": str(FOLDER), "max_steps": 10, "save_strategy": "no", **settings}
    arguments = TrainingArguments(
        use_cpu=True, per_device_train_batch_size=ROWS, learning_rate=0.1, lr_scheduler_type="constant",
        optim="sgd", optim_args="momentum=0.9", max_grad_norm=0.0, report_to=[], disable_tqdm=True, logging_steps=100,
        dataloader_pin_memory=False, ddp_backend="gloo", remove_unused_columns=False, **made,
    )  # fmt: skip
    trainer = Ordered(Model(), arguments, train_dataset=Rows(), eval_dataset=Rows())
    patch(trainer)
    trainer.train(resume_from_checkpoint=resumes)
    return trainer


def alike(trainer: Any) -> bool:
    every: list[Any] = [None] * 2
    dist.all_gather_object(every, [values.tolist() for values in trainer.model.state_dict().values()])
    return bool(every[0] == every[1])


def main() -> None:
    torch.set_num_threads(1)
    note: dict[str, float] = {}
    batches = list(zip(*(column.split(ROWS) for column in DATA), strict=True))
    shares = [batches[rank::2] for rank in range(2)]  # batches go to the ranks in turn
    local = trained(lambda trainer: casync.transformers.local_sgd(trainer, 4), eval_strategy="steps", eval_steps=10)
    wanted, rounds = train(shares, 4)
    note["local SGD"] = apart(local.model.inner.state_dict(), wanted)
    note["evaluation sees the last round"] = apart(local.seen, rounds[-2])
    outer = functools.partial(torch.optim.SGD, lr=0.5, momentum=0.5, nesterov=True)
    exact = trained(
        lambda trainer: casync.transformers.diloco(trainer, 3, outer_optimizer=outer),
        gradient_accumulation_steps=2, max_steps=5,
    )  # fmt: skip
    note["DiLoCo with accumulation"] = apart(exact.model.inner.state_dict(), train(shares, 3, (0.5, 0.5), passes=2)[0])

    def with_codec(trainer: Any) -> None:
        casync.transformers.diloco(trainer, 3, compression="always(onebit)", fragment_sync_delay=1)

    whole = trained(with_codec, save_strategy="steps", save_steps=5)
    again = trained(with_codec, resumes=str(FOLDER / "checkpoint-5"))
    note["resumed"] = apart(again.model.state_dict(), whole.model.state_dict())
    best = trained(
        with_codec, save_strategy="steps", save_steps=5, eval_strategy="steps", eval_steps=5,
        load_best_model_at_end=True, output_dir=str(FOLDER / "best"), metric_for_best_model="loss",
    )  # fmt: skip
    note["not alike"] = 0.0 if all(alike(trainer) for trainer in (local, exact, whole, again, best)) else 1.0
    note["the best one"] = abs(best.evaluate()["eval_loss"] - best.state.best_metric)
    if RANK == 0:
        print("NOTE " + json.dumps(note), flush=True)
    hvd.shutdown()
    os._exit(0)  # as in told.py


if __name__ == "__main__":
    main()
