"""netlab: several hosts on one machine, each a network namespace with a shaped link to a common bridge.

    from benchmarks.netlab import Netlab
    with Netlab(hosts=4, rate="1gbit") as lab:
        print(lab.goodput())                                  # bits/s that one TCP stream reaches now
        result = lab.run(4, ["python", "train.py"])           # through casyncrun
        print(result.status, result.counters["h1"].tx_bytes)  # what the NIC sent meanwhile

Needs root and iproute2. From a shell: `python -m benchmarks.netlab run --hosts 4 --rate 1gbit -- python train.py`.
"""

from __future__ import annotations

from benchmarks.netlab.job import Counters, Job, RunResult
from benchmarks.netlab.lab import Netlab, clean
from benchmarks.netlab.layout import Distance
from benchmarks.netlab.system import NetlabError

__all__ = ["Counters", "Distance", "Job", "Netlab", "NetlabError", "RunResult", "clean"]
