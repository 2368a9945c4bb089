"""The examples run as their first lines say: under casyncrun on 4 ranks, and on two hosts with two ranks each."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.netlab import Netlab, NetlabError
from benchmarks.netlab.system import environment
from support.processes import casyncrun

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DIGITS, COMPRESSED, SYNTHETIC = (
    str(EXAMPLES / "03_from_horovod" / name) for name in ("digits.py", "compressed.py", "synthetic_benchmark.py")
)
NUMPY = str(EXAMPLES / "numpy" / "digits.py")
MXNET = str(EXAMPLES / "from_horovod_mxnet" / "digits.py")
DDP = str(EXAMPLES / "from_ddp" / "digits.py")
TWO_SITES = str(EXAMPLES / "04_two_sites" / "train.py")
KERAS = str(EXAMPLES / "from_horovod_keras" / "digits.py")
FEW = ("--num-warmup-batches=2", "--num-batches-per-iter=2", "--num-iters=3")
Start = Callable[..., str]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def on_this_host(folder: Path, *command: str, ranks: int = 4) -> str:
    start = casyncrun(ranks, *command)
    ended = subprocess.run(start, cwd=folder, env=environment(None), capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Netlab]:
    try:
        with Netlab(hosts=2, rate="1gbit") as lab:
            yield lab
    except NetlabError as error:
        pytest.skip(str(error))


TWO_HOSTS = pytest.param("2 hosts x 2 ranks", marks=pytest.mark.netns)


@pytest.fixture(params=["4 ranks", TWO_HOSTS])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Runs a program on 4 ranks, and returns what it prints."""
    if request.param == "4 ranks":
        return lambda *command: on_this_host(tmp_path, *command)
    lab = request.getfixturevalue("two_hosts")

    def run(*command: str) -> str:
        # The lab's hosts have no name service: gloo, under DDP, is told where they are.
        ended = lab.run(4, [sys.executable, *command], {"GLOO_SOCKET_IFNAME": "eth0"}, timeout=180)
        assert ended.status == 0, ended.stdout + ended.stderr
        assert all(counters.tx_bytes > 1 << 20 for counters in ended.counters.values())
        return ended.stdout

    return run


def last_accuracy(output: str) -> float:
    return float(re.findall(r"accuracy ([\d.]+) %", output)[-1])


def numbers_after(text: str, output: str) -> list[float]:
    (found,) = re.findall(rf"{text}: ([\d.]+) \+- ([\d.]+) images/s", output)
    return [float(number) for number in found]


def test_digits_learns(start: Start) -> None:
    assert last_accuracy(start(DIGITS)) > 95


def test_flags_of_digits(tmp_path: Path) -> None:
    flags = ("--epochs=3", "--fp16-allreduce", "--gradient-predivide-factor=2")
    output = on_this_host(tmp_path, DIGITS, *flags, ranks=2)
    assert last_accuracy(output) > 60


def test_digits_by_adasum(tmp_path: Path) -> None:
    assert last_accuracy(on_this_host(tmp_path, DIGITS, "--epochs=3", "--use-adasum", ranks=2)) > 60


def test_the_benchmark_gives_a_rate(tmp_path: Path) -> None:
    output = on_this_host(tmp_path, SYNTHETIC, "--batch-size=8", *FEW)
    (mean, _), (total, spread) = numbers_after("per rank", output), numbers_after("total on 4 ranks", output)
    assert math.isfinite(total) and math.isfinite(spread) and mean > 0
    assert total == pytest.approx(4 * mean, rel=0.01)
    assert output.count("iteration ") == 3


@pytest.mark.parametrize("model", ["conv", "dense"])
def test_models_of_the_benchmark(tmp_path: Path, model: str) -> None:
    output = on_this_host(tmp_path, SYNTHETIC, f"--model={model}", "--batch-size=4", "--fp16-allreduce", *FEW, ranks=1)
    assert numbers_after("total on 1 ranks", output)[0] > 0


def test_the_compressed_example_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Two epochs at once, and one and one."""
    folder = f"--checkpoint={tmp_path / 'checkpoint'}"
    whole = on_this_host(tmp_path, COMPRESSED, "--epochs=2", ranks=2)
    on_this_host(tmp_path, COMPRESSED, "--epochs=1", folder, ranks=2)
    resumed = on_this_host(tmp_path, COMPRESSED, "--epochs=2", folder, ranks=2)
    assert "in epochs 2 to 2" in resumed and last_accuracy(resumed) == last_accuracy(whole)
    (ours,), (theirs,) = (re.findall(r"parameters (\w+) on all ranks", output) for output in (resumed, whole))
    assert ours == theirs


@pytest.mark.parametrize("start", [TWO_HOSTS], indirect=True)
def test_two_sites_learn_and_send_little(start: Start) -> None:
    output = start(TWO_SITES, "--steps=60")
    loss, sent = map(float, re.findall(r"loss ([\d.]+) on all 4 workers; rank 0 sent ([\d.]+) MiB", output)[0])
    assert loss < 3.2  # 4.5 is as good as chance
    # The first weights, gradients to the other worker of the site, and three rounds of a bit per number.
    assert sent < 3.4 + 60 * 3.4 + 3 * 0.3 + 5


@pytest.mark.parametrize("start", [TWO_HOSTS], indirect=True)
def test_ddp_learns(start: Start) -> None:
    assert last_accuracy(start(DDP, "--epochs=5", "--accumulate=2")) > 85


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_numpy_learns(tmp_path: Path, codec: str) -> None:
    assert last_accuracy(on_this_host(tmp_path, NUMPY, f"--compression={codec}")) > 95


@pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed")
def test_mxnet_learns(tmp_path: Path) -> None:
    assert last_accuracy(on_this_host(tmp_path, MXNET, "--epochs=12")) > 90


@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_learns(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    checkpoint = f"--checkpoint={tmp_path / 'best.keras'}"
    output = on_this_host(tmp_path, KERAS, "--epochs=5", "--compression=onebit", checkpoint, ranks=2)
    assert last_accuracy(output) > 85 and (tmp_path / "best.keras").exists()
