"""What a timeline says of tensors."""

from __future__ import annotations

import json

__all__ = ["intervals"]


def intervals(path: str, rank: int, name: str) -> dict[str, tuple[float, float]]:
    """By tensor, when the phase of this name began and ended on this rank, in microseconds."""
    with open(path if rank == 0 else f"{path}.{rank}") as file:
        events = json.loads(file.read().rstrip().rstrip(",").removesuffix("]") + "]")
    tensors = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    return {
        tensors[event["tid"]].removeprefix("allreduce."): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X" and event["name"] == name
    }
