"""One process that trains with the Trainer; "ddp" leaves CaSync out.

with_transformers.py CODEC FOLDER [resume [CHECKPOINT]]
"""

import sys
import warnings
from typing import Any

import torch
from told import tell  # type: ignore[import-not-found]  # beside this script
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

CODEC, FOLDER = sys.argv[1:3]
RESUMES = "resume" in sys.argv
warnings.simplefilter("ignore")


class Words(torch.utils.data.Dataset):
    """Which of two letters comes first."""

    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(0)
        self.words = torch.randint(4, 60, (640, 12), generator=numbers)
        self.labels = torch.randint(2, (640,), generator=numbers)
        self.words[:, 0] = self.labels + 1

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[at], "labels": self.labels[at]}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
    )
    arguments = TrainingArguments(
        FOLDER,
        use_cpu=True,
        per_device_train_batch_size=16,
        max_steps=60 if RESUMES else 40,
        save_steps=40,
        learning_rate=2e-3,
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_backend="gloo",
    )
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Words())
    if CODEC != "ddp":
        import casync.transformers

        casync.transformers.patch(trainer, CODEC)
    trainer.train(resume_from_checkpoint=sys.argv[4] if len(sys.argv) > 4 else RESUMES)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model: Any = trainer.model
    tell(CODEC, losses[-1], model.parameters())


if __name__ == "__main__":
    main()
