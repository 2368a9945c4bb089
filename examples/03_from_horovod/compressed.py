"""digits.py with a codec, what it saves, and checkpoints from which training goes on bit for bit.

    casyncrun -np 4 python examples/03_from_horovod/compressed.py --compression onebit --checkpoint run1

What CaSync adds to a script for Horovod is marked (1) to (4).
"""

import argparse
import hashlib
from pathlib import Path

import casync.torch as hvd
import torch
from digits import Net, load_data, share_of, test, train

import casync


def digest(model: torch.nn.Module) -> str:
    """Of all parameters: equal for equal bits."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]


def save(folder: Path, epoch: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    # (3) What codecs keep is each rank's own, so all ranks save it. The rest is alike on all: rank 0 does, as ever.
    casync.save_state(folder / str(epoch))
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / str(epoch) / "model.pt")


def resume(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The last epoch that was saved, with everything as it was after it; 0 if there is none."""
    epoch = 0
    if hvd.rank() == 0:
        epoch = max((int(path.parent.name) for path in folder.glob("*/model.pt")), default=0)
    epoch = hvd.broadcast_object(epoch, root_rank=0, name="epoch")
    if epoch > 0:
        if hvd.rank() == 0:
            state = torch.load(folder / str(epoch) / "model.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        casync.load_state(folder / str(epoch))  # (4) on every rank
    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--compression", default="onebit", help="a codec's spec, or a CompLL file of your own")
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to go on from")
    arguments = parser.parse_args()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)  # the ranks of one host share its cores

    training, testing = load_data()
    loader, test_loader = share_of(training, 16, shuffle=True), share_of(testing, 100)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03 * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=arguments.compression,  # (1) where Horovod has none and fp16
    )
    done = resume(arguments.checkpoint, model, optimizer) if arguments.checkpoint else 0
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    sent = hvd.counters()["sent_bytes"]
    for epoch in range(done + 1, arguments.epochs + 1):
        torch.manual_seed(1000 * epoch + hvd.rank())  # for dropout: nothing of it has to be saved
        train(model, optimizer, loader, epoch, every=100)
        test(model, test_loader)
        if arguments.checkpoint:
            save(arguments.checkpoint, epoch, model, optimizer)

    sent = hvd.counters()["sent_bytes"] - sent  # (2) what this rank sent, heads of messages included
    digests = hvd.allgather_object(digest(model))
    if hvd.rank() == 0:
        print(f"{arguments.compression}: rank 0 sent {sent / 2**20:.1f} MiB in epochs {done + 1} to {arguments.epochs}")
        print(f"parameters {digests[0]} on {'all ranks' if len(set(digests)) == 1 else 'rank 0 ONLY'}")


if __name__ == "__main__":
    main()
