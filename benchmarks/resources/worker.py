"""One rank of the resource benchmark: `idle`, `waiting` (on rank 3, which comes late), or `memory` with a codec and
a topology."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def high_water_kib() -> int:
    """Most resident memory this process ever had (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise RuntimeError("no VmHWM in /proc/self/status")


def announce(folder: Path, name: str) -> None:
    (folder / name).touch()


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    import casync.torch as hvd
    import torch

    torch.set_num_threads(1)
    if mode == "memory":
        memory(folder, *sys.argv[3:])
        return
    hvd.init()
    tensor = torch.ones(1024)
    hvd.allreduce_(tensor, name="warm")
    if mode == "waiting":
        if hvd.rank() == hvd.size() - 1:
            time.sleep(14.0)
        else:
            announce(folder, f"ready.{os.getpid()}")
        hvd.allreduce_(tensor, name="late")
    else:
        announce(folder, f"ready.{os.getpid()}")
        time.sleep(14.0)
    hvd.shutdown()


def memory(folder: Path, codec: str, topology: str, mebibytes: str, late_seconds: str) -> None:
    """Runs steps on `mebibytes` of gradients with the last rank late; codec `control` allocates the same without
    CaSync."""
    import casync.torch as hvd
    import torch

    count = 8
    gradients = [torch.ones(int(mebibytes) * (1 << 20) // 4 // count) for _ in range(count)]
    rank = int(os.environ["CASYNC_RANK"])
    accounted = 0
    if codec != "control":
        hvd.init()
        for step in range(4):
            if step == 2 and rank == hvd.size() - 1:
                time.sleep(float(late_seconds))
            handles = [
                hvd.allreduce_async_(gradient, name=f"g{i}", compression=codec, topology=topology)
                for i, gradient in enumerate(gradients)
            ]
            for handle in handles:
                hvd.synchronize(handle)
        counters = hvd.counters()
        accounted = counters["slot_bytes"] + counters["residual_bytes"]
        hvd.shutdown()
    (folder / f"memory.{rank}").write_text(json.dumps({"high_water_kib": high_water_kib(), "accounted": accounted}))


if __name__ == "__main__":
    main()
