"""One process that trains with Accelerate: `with_accelerate.py CODEC FOLDER`; "ddp" leaves CaSync out."""

import sys
from typing import Any

import torch
from accelerate import Accelerator
from told import tell  # type: ignore[import-not-found]  # beside this script

CODEC = sys.argv[1]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    if CODEC != "ddp":
        import casync.accelerate

        accelerator.ddp_handler = casync.accelerate.ddp_kwargs(compression=CODEC)
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


if __name__ == "__main__":
    main()
