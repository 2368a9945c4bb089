"""64 ranks on one machine: what grows with their number is seen here (connections, descriptors, names, places to meet).

They are forked from one process that has imported everything, so that a rank costs a fork and no import.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from support.ports import free_port

RANKS = 64
OTHERS = ("OMPI_", "PMIX_", "PMI_", "CASYNC_", "HOROVOD_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
PROGRAM = f"""
    import os, sys, time
    import numpy as np
    import casync.numpy as hvd
    from casync import _core
    from casync.transport import tcp

    def rank_of(number):
        os.environ.update(RANK=str(number), WORLD_SIZE="{RANKS}")
        hvd.init(store=STORE)
        total = hvd.allreduce(np.full(1000, number, np.float32), name="g", op=hvd.Sum)
        assert total[0] == total[-1] == {RANKS * (RANKS - 1) // 2}, total
        assert hvd.rank() == hvd.local_rank() == number and hvd.local_size() == {RANKS}
        hvd.shutdown()

    children = []
    for number in range({RANKS}):
        if (child := os.fork()) == 0:
            status = 1
            try:
                rank_of(number)
                status = 0
            except BaseException as error:
                print(f"rank {{number}}: {{error!r}}", flush=True)
            finally:
                os._exit(status)
        children.append(child)
    failed = [number for number, child in enumerate(children) if os.waitpid(child, 0)[1]]
    print("failed:", failed)
"""

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("store", ["port", "folder"])
def test_64_ranks_form_a_world(tmp_path: Path, store: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    environ |= {"OMP_NUM_THREADS": "1", "CASYNC_START_TIMEOUT_SECONDS": "120"}
    if store == "port":
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    program = textwrap.dedent(PROGRAM).replace("STORE", "None" if store == "port" else repr(str(tmp_path / "meet")))
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=170
    )
    print(f"{RANKS} ranks by {store}: {time.monotonic() - begun:.1f} s")
    assert done.stdout == "failed: []\n", done.stdout[:4000] + done.stderr[-4000:]
