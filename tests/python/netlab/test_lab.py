"""Real namespaces: jobs run on them, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.netlab import Distance, Netlab, NetlabError, clean

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def lab() -> Iterator[Netlab]:
    try:
        with Netlab(hosts=3, rate="400mbit") as made:
            yield made
    except NetlabError as error:
        pytest.skip(str(error))


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def names(layout_bridge: str) -> str:
    """Everything the kernel has under a lab's name."""
    out = subprocess.run(
        "ip netns list; ip link show", shell=True, capture_output=True, text=True, timeout=10, check=True
    )
    return " ".join(word for word in out.stdout.split() if layout_bridge in word)


def test_one_stream_reaches_the_rate_of_the_link(lab: Netlab) -> None:
    goodput = lab.goodput(seconds=1.0)
    assert 0.85 * 400e6 < goodput < 400e6


def test_a_job_runs_one_rank_per_host_and_the_nics_carry_its_bytes(lab: Netlab, tmp_path: Path) -> None:
    body = """
        import os, socket
        rank, port = int(os.environ["CASYNC_RANK"]), 7000
        print(socket.gethostname(), os.environ["CASYNC_CROSS_RANK"], os.environ["CASYNC_LOCAL_SIZE"], flush=True)
        if rank == 0:
            with socket.create_server(("", port)) as server:
                link, _ = server.accept()
                total = 0
                while data := link.recv(1 << 20):
                    total += len(data)
                print("received", total, flush=True)
        elif rank == 1:
            import time
            for _ in range(100):
                try:
                    link = socket.create_connection((os.environ["MASTER_ADDR"], port))
                    break
                except OSError:
                    time.sleep(0.05)
            link.sendall(bytes(8 << 20))
    """
    result = lab.run(3, script(tmp_path, body), timeout=40)
    assert result.status == 0, result.stderr
    for rank in range(3):
        assert f"[{rank}]<stdout>: h{rank + 1} {rank} 1" in result.stdout
    assert f"received {8 << 20}" in result.stdout
    assert 8 << 20 < result.counters["h2"].tx_bytes < 1.05 * (8 << 20)
    assert 8 << 20 < result.counters["h1"].rx_bytes < 1.05 * (8 << 20)
    assert result.counters["h3"].tx_bytes < 1 << 18


def test_environment_and_more_ranks_than_hosts(lab: Netlab, tmp_path: Path) -> None:
    result = lab.run(
        4, script(tmp_path, "import os; print(os.environ['A'], os.environ['CASYNC_HOSTNAME'])"), {"A": "x y"}
    )
    assert sorted(result.stdout.split("\n"))[1:] == [f"[{rank}]<stdout>: x y h{1 + rank // 2}" for rank in range(4)]


def test_a_killed_rank_is_named_with_its_host(lab: Netlab, tmp_path: Path) -> None:
    body = """
        import os, signal, time
        if os.environ["CASYNC_RANK"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
    """
    result = lab.run(3, script(tmp_path, body), timeout=40)
    assert result.status == 137
    assert "rank 2 on host h3 was killed by SIGKILL" in result.stderr


def test_a_link_that_is_down_carries_nothing_until_it_is_up(lab: Netlab) -> None:
    lab.link_down("h2")
    with pytest.raises(NetlabError):
        lab.goodput(seconds=0.2)
    lab.link_up("h2")
    assert lab.goodput(seconds=0.5) > 1e8
    with pytest.raises(NetlabError, match="no host 'h9'"):
        lab.link_down("h9")


def test_a_job_that_takes_too_long_is_ended_on_every_host(lab: Netlab, tmp_path: Path) -> None:
    result = lab.run(3, script(tmp_path, "import time; time.sleep(300)"), timeout=3)
    assert result.timed_out and result.seconds < 10
    for host in lab.layout.hosts:
        pids = subprocess.run(
            ["ip", "netns", "pids", host.namespace], capture_output=True, text=True, timeout=10, check=True
        )
        assert pids.stdout == ""


@pytest.mark.parametrize("victim", ["casyncrun", "prted"])
def test_nobody_outlives_a_kill_9_of(lab: Netlab, tmp_path: Path, victim: str) -> None:
    job = lab.start(3, script(tmp_path, "import time; print('up', flush=True); time.sleep(300)"))
    try:
        deadline = time.monotonic() + 20
        while job.stdout().count("up") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        if victim == "casyncrun":
            job.processes[0].kill()
        else:
            host = lab.layout.hosts[1].namespace
            pids = subprocess.run(
                ["ip", "netns", "pids", host], capture_output=True, text=True, timeout=10, check=True
            ).stdout
            daemons = [
                int(p) for p in pids.split() if b"prted" in Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[0]
            ]
            os.kill(daemons[-1], signal.SIGKILL)
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline and (alive := _alive(lab)):
            time.sleep(0.1)
        assert alive == []
    finally:
        job.stop()


def _alive(lab: Netlab) -> list[str]:
    return [
        pid
        for host in lab.layout.hosts
        for pid in subprocess.run(
            ["ip", "netns", "pids", host.namespace], capture_output=True, text=True, timeout=10, check=True
        ).stdout.split()
    ]


def test_jobs_that_start_as_torchrun_would(lab: Netlab, tmp_path: Path) -> None:
    body = """
        import os, socket
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], socket.gethostname(), os.environ["GLOO_SOCKET_IFNAME"])
        raise SystemExit(4 if os.environ["RANK"] == "1" else 0)
    """
    result = lab.run_torch(script(tmp_path, body), timeout=30)
    assert result.stdout.splitlines() == [f"{rank} 3 h{rank + 1} eth0" for rank in range(3)]
    assert result.status == 4


def test_two_labs_live_side_by_side_and_a_crashed_one_is_swept(lab: Netlab) -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from benchmarks.netlab import Netlab\n"
        "lab = Netlab(2, None).__enter__(); print(lab.layout.bridge, lab.folder, flush=True); os._exit(9)"
    )
    crashed = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, timeout=30, check=False
    )
    bridge, folder = crashed.stdout.split()
    assert bridge != lab.layout.bridge and names(bridge)
    assert bridge in clean()
    assert names(bridge) == "" and not Path(folder).exists()
    assert names(lab.layout.bridge)


def test_the_command_line(lab: Netlab, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # beside it is no casync that is not installed
    command = [sys.executable, "-m", "benchmarks.netlab", "run", "--hosts", "2", "--rate", "none", "--env", "A=b"]
    done = subprocess.run(
        [*command, "--", "sh", "-c", "echo $A $CASYNC_RANK"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: b 0", "[1]<stdout>: b 1"]
    assert re.search(r"h2 +[\d,]+ +[\d,]+", done.stderr)


def test_the_lab_is_gone_afterwards_even_after_an_exception() -> None:
    made = Netlab(1, None)
    try:
        with made:
            bridge, folder = made.layout.bridge, made.folder
            raise KeyError
    except NetlabError as error:
        pytest.skip(str(error))
    except KeyError:
        pass
    assert names(bridge) == ""
    assert not folder.exists()
    with pytest.raises(NetlabError, match="inside"):
        _ = made.layout


def test_distant_hosts_have_a_round_trip_and_lose_packets(tmp_path: Path) -> None:
    body = """
        import os, socket, time
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            try:
                socket.create_connection((os.environ["MASTER_ADDR"], 7), timeout=5)  # refused, after a round trip
            except ConnectionRefusedError:
                times.append(time.perf_counter() - begun)
        if os.environ["RANK"] == "1":
            print(min(times))
    """
    with Netlab(hosts=2, rate="100mbit", distance=Distance(40.0)) as lab:
        result = lab.run_torch(script(tmp_path, body), timeout=30)
        assert 0.040 <= float(result.stdout) < 0.060, result.stderr
        # From the first byte on (skip): what a late emulator still holds when the counting begins would count too.
        assert 0.75 * 100e6 < lab.goodput(seconds=3.0, skip=0.0) < 100e6
        assert 0.8 * 100e6 < lab.goodput(seconds=3.0)
        printed = lab.run(2, ["hostname"], timeout=60).stdout.splitlines()
        assert sorted(line.partition(">: ")[2] or line.partition(">:")[2] for line in printed) == ["h1", "h2"]
        bridge = lab.layout.bridge
    assert names(bridge) == ""
    with Netlab(hosts=2, rate="100mbit", distance=Distance(40.0, 0.01)) as lab:
        assert lab.goodput(seconds=3.0) < 0.2 * 100e6  # cubic takes a loss for congestion
