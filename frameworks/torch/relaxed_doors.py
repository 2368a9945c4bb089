"""What local SGD and DiLoCo of several libraries share.

A library's own checkpoint has the global parameters. Beside it is a file for each rank, with its own parameters, what
codecs keep and the state of its optimizers.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from casync.session import default
from casync.tensors.signature import Min

from . import ops
from .relaxed import LocalSGD

__all__ = ["global_parameters", "load", "save"]


def global_parameters(local: LocalSGD | None) -> contextlib.AbstractContextManager[None]:
    """`local.global_parameters()`, or nothing if there is none, or if that is around it already."""
    if local is None or local.rounds.is_evaluating:
        return contextlib.nullcontext()
    return local.global_parameters()


def save(folder: str | os.PathLike[str], local: LocalSGD, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Write the file of this rank. All ranks call it after the same step."""
    session = default.session()
    file = Path(folder) / f"rank-{session.rank}-of-{session.size}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    if session.rank == 0:
        for other in file.parent.glob("rank-*-of-*.pt"):
            if not other.stem.endswith(f"-of-{session.size}"):  # of a world that there was under this name
                other.unlink(missing_ok=True)
    state = {"local": local.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    part = file.with_suffix(".part")
    torch.save(state, part)
    part.replace(file)


def load(folder: str | os.PathLike[str], local: LocalSGD, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Go on from what `save` wrote, and in a world of another size from the global parameters in it. Collective. If a
    rank finds no file, all ranks go on from what the checkpoint itself has, with a warning.
    """
    session = default.session()
    own = Path(folder) / f"rank-{session.rank}-of-{session.size}.pt"
    found = [own] if own.is_file() else sorted(Path(folder).glob("rank-0-of-*.pt"))
    everywhere = int(ops.allreduce(torch.tensor([len(found)]), op=Min, name="casync.relaxed.files"))
    if not everywhere:
        warnings.warn(
            f"{folder} lacks the state of a rank: what codecs kept, the outer optimizer's state and the steps since "
            "the last round begin anew",
            stacklevel=3,
        )
        return
    state = torch.load(found[0], map_location="cpu", weights_only=True)
    local.load_state_dict(state["local"])
    for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
