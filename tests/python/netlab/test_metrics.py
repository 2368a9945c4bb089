"""What metrics count as sent and received is what the hosts' NICs carry, up to TCP's own headers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.netlab import Netlab, NetlabError

pytestmark = pytest.mark.netns

PROGRAM = """
import json, os, sys, time
import torch
import casync.torch as hvd

def nic():
    with open("/proc/net/dev") as file:
        numbers = next(line for line in file if line.strip().startswith("eth0")).split(":")[1].split()
    return {"received": int(numbers[0]), "sent": int(numbers[8])}

torch.set_num_threads(1)
hvd.init(timeout_s=40.0)
codec = sys.argv[1]
rank = hvd.rank()
gradient = torch.randn(2_000_000)
hvd.allreduce(gradient, name="gradient", compression=codec)  # agreed on, and its plan settled

def quiet():
    # Nothing is under way any more: what a rank has handed to its kernel has left by its NIC.
    hvd.barrier()
    time.sleep(0.3)

quiet()
before, nic_before = hvd.metrics(), nic()
for _ in range(int(sys.argv[2])):
    hvd.allreduce(gradient, name="gradient", compression=codec)
quiet()
after, nic_after = hvd.metrics(), nic()

def messages(metrics, direction):
    traffic = getattr(metrics.codecs[codec], direction).values() if codec in metrics.codecs else ()
    return sum(one.wire_bytes for one in traffic)

told = {"rank": rank}
for direction in ("sent", "received"):
    name = f"{direction}_bytes"
    told[direction] = {
        "nic": nic_after[direction] - nic_before[direction],
        "transport": getattr(after.transport, name) - getattr(before.transport, name),
        "messages": messages(after, direction) - messages(before, direction),
    }
print("TOLD " + json.dumps(told), flush=True)
hvd.shutdown()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Netlab]:
    try:
        with Netlab(hosts=2, rate="1gbit") as made:
            yield made
    except NetlabError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("codec", "rounds"), [("none", 4), ("fp16", 6), ("onebit", 40)])
def test_bytes_are_those_of_the_nics(lab: Netlab, tmp_path: Path, codec: str, rounds: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    ended = lab.run(2, [sys.executable, str(script), codec, str(rounds)], timeout=50)
    assert ended.status == 0, ended.stdout + ended.stderr
    ranks = [json.loads(line.split("TOLD ", 1)[1]) for line in ended.stdout.splitlines() if "TOLD " in line]
    assert sorted(told["rank"] for told in ranks) == [0, 1]
    for told in ranks:
        for direction in ("sent", "received"):
            of = told[direction]
            assert of["messages"] > 5e6 / (1 if codec != "onebit" else 2), told
            assert of["messages"] <= of["transport"] <= of["nic"] <= 1.05 * of["messages"], told
