"""What `make demo` runs: a small net, trained uncompressed and with onebit on two emulated hosts with slow links.

Emulated hosts are network namespaces, for which one must be root. Where there can be none, four workers of this host
train, and the table ends with what a network would make of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.netlab import Netlab, NetlabError  # noqa: E402

PROGRAM = str(ROOT / "examples/01_first_sync/train.py")
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns that these hosts have no names in a DNS


def main() -> int:
    try:
        with Netlab(hosts=2, rate="100mbit") as lab:
            print("== 2 emulated hosts, 100 Mbit/s between them, a worker on each", flush=True)
            command = [sys.executable, PROGRAM, "--seeds", "1", "--epochs", "5"]
            return lab.run_torch(command, QUIET, capture=False).status
    except NetlabError as error:
        print(f"== 4 workers of this host, without emulated hosts: {error}", flush=True)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--nproc-per-node=4", PROGRAM, "--seeds", "1", "--epochs", "5"]
    return subprocess.run(command, env={**os.environ, **QUIET}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
