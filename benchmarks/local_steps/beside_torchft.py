"""torchft's DiLoCo over gloo, as a contender: the same rounds, each replica group of one rank.

torchft is not among the requirements of the benchmarks: `pip install torchft` before.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import time
from collections.abc import Callable

import casync.torch as hvd
import torch
import torch.distributed as dist

__all__ = ["rounds"]

_PATIENCE = datetime.timedelta(seconds=600)


def _own_address() -> str:
    """Return the address of this host of the lab, whose name no resolver knows."""
    command = ["ip", "-json", "-4", "addr", "show", os.environ["GLOO_SOCKET_IFNAME"]]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return str(shown[0]["addr_info"][0]["local"])


def rounds(
    model: torch.nn.Module, every: int, count: int, step: Callable[[int, int, torch.optim.Optimizer], None]
) -> list[float]:
    """Make `count` rounds of `every` steps and one more, the first; the seconds of the others. `step(turn, number,
    optimizer)` makes one.
    """
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    host = _own_address()
    lighthouse = LighthouseServer(bind=f"{host}:0", min_replicas=hvd.size()) if hvd.rank() == 0 else None
    port = lighthouse.address().rpartition(":")[2] if lighthouse else None
    address = hvd.broadcast_object(f"http://{host}:{port}", 0, name="lighthouse")
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=_PATIENCE),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=hvd.size(),
        use_async_quorum=False,
        timeout=_PATIENCE,
        quorum_timeout=_PATIENCE,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"rank{hvd.rank()}",
        hostname=host,
        init_sync=False,
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    seconds = []
    try:
        with DiLoCo(manager, [model], inner, outer, sync_every=every, pin_memory=False):
            for turn in range(count + 1):
                began = time.perf_counter()
                for number in range(every):
                    step(turn, number, inner)
                seconds.append(time.perf_counter() - began)
        committed = manager.current_step()
        if committed != count + 1:
            raise SystemExit(f"torchft committed {committed} rounds of {count + 1}")
        hvd.barrier()
    finally:
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()
    return seconds[1:]
