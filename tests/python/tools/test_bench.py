"""`casync bench`: what it concludes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from casync.bench import ways
from casync.bench.program import Heard
from casync.observe.step_profile import NEEDED_STEPS, Gradient, Observation
from casync.plan.plans import read_plans

TRAIN = str(Path(__file__).with_name("train.py"))


def test_nothing_beats_none_by_more_than_three_percent() -> None:
    assert ways.verdict({"none": 1.0, "fp16": 0.97, "onebit": 1.2}) == ways.DO_NOT_COMPRESS


def test_the_verdict_names_the_fastest_and_what_it_replaces() -> None:
    said = ways.verdict({"none": 2.0, "fp16": 1.0, "onebit": 0.25})
    assert said == "Compress with onebit: a step takes 250 ms, against 2 s uncompressed and 1 s with fp16."


def test_contenders_come_once_and_the_gentlest_first() -> None:
    assert ways.contenders(["onebit", "bf16"]) == ["none", "fp16", "onebit", "bf16"]


def test_steps_of_the_warm_up_do_not_count_if_there_are_others() -> None:
    assert ways.counted([9.0, 8.0, 1.0, 2.0]) == [1.0, 2.0]
    assert ways.counted([9.0, 8.0]) == [8.0]


def test_gradients_are_ready_by_their_share_of_the_backward_pass() -> None:
    assert ways.ready_times([1, 3], 0.4) == pytest.approx([0.1, 0.4])


def test_bfloat16_takes_two_bytes() -> None:
    step = Observation((Gradient("w", (3,), "bfloat16", 0.0),), 0.0)
    assert ways.gradient_bytes(step) == 6


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "casync", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, cwd="/")


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"w": [100, 100], "b": [100]}))
    return str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-np", "2", "--model", "resnet51"], "resnet50"),
        (["-np", "2", "--shapes", "/no/file"], "/no/file: No such file"),
        (["-np", "2", "--model", "resnet50", "--codec", "nothing"], "--codec nothing"),
        (["--model", "resnet50"], "say how many ranks"),
        (["-np", "2"], "say what the gradients are"),
        (["-np", "2", "--"], "say what the gradients are"),
        (["-np", "2", "--model", "resnet50", "--", "true"], "--model is not allowed"),
        (["-np", "2", "--backward", "1s", "--", "true"], "--backward is not allowed"),
        (["-np", "2", "--model", "resnet50", "--plan", "plan.json"], "made up"),
    ],
)
def test_a_command_line_that_cannot_be_run_is_one_line(words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_two_ranks_measure_and_the_plans_are_of_these_gradients(shapes: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done = bench("-np", "2", "--shapes", shapes, "--json", "--plan", str(plan))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["ways"])[:3] == ["none", "fp16", "onebit"] and found["ranks"] == 2
    assert set(read_plans(plan)) == {"allreduce.w", "allreduce.b"}


def test_a_host_that_cannot_be_reached_is_one_line(shapes: str) -> None:
    done = bench("-H", "no-such-host.invalid:2", "--shapes", shapes)
    assert done.returncode == 1 and done.stdout == ""
    assert "no-such-host.invalid" in done.stderr and done.stderr.count("\n") == 1


def test_a_shapes_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text('{"w": [0]}')
    done = bench("-np", "2", "--shapes", str(tmp_path / "shapes.json"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "gradient 'w'" in done.stderr


def test_an_interrupt_ends_it_with_status_130(shapes: str) -> None:
    command = [sys.executable, "-m", "casync", "bench", "-np", "2", "--shapes", shapes, "--verbose"]
    job = subprocess.Popen(
        [*command, "--backward", "1s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    assert job.stderr is not None
    while "rank 1 is on host" not in job.stderr.readline():
        assert job.poll() is None
    job.send_signal(signal.SIGINT)
    assert "interrupted" in job.communicate(timeout=40)[1]
    assert job.returncode == 130


# A program of the user's own


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[], list[int]]:
    """The processes of `train.py`, and those that these started, that still run."""

    def running() -> list[int]:
        known = [int(pid) for file in tmp_path.glob("*.pids") for pid in file.read_text().split()]
        return [pid for pid in known if Path(f"/proc/{pid}/cmdline").exists() and is_alive(pid)]

    return running


def is_alive(pid: int) -> bool:
    """Not a zombie that waits for a parent's look."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_is_measured_with_its_own_gradients_and_can_use_the_plans(
    tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    plan = tmp_path / "plan.json"
    command = [sys.executable, TRAIN, "10000", str(tmp_path)]
    done = bench("-np", "2", "--json", "--plan", str(plan), "--seconds", "40", "--", *command)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.pids"))) == 2 and pids() == []
    found = json.loads(done.stdout)
    assert found["gradients"] == 2 and found["gradient_bytes"] == 4 * 64 * 100 + 2 * 128 * 128
    assert 0.08 <= found["backward_s"] < found["computes_s"], "0.08 s of 0.12 s are between the gradients"
    assert found["ways"]["none"]["step_s"] > found["computes_s"] >= 0.12
    plans = read_plans(plan)
    assert [plans[f"allreduce.{name}.weight"].tensor for name in ("layer2", "layer1")] == [
        "float32 (64, 100)",
        "float16 (128, 128)",
    ]
    job = [sys.executable, "-m", "casync", "run", "-np", "2", "--", sys.executable, TRAIN, "3", str(tmp_path)]
    environ = {**os.environ, "CASYNC_PLAN_FILE": str(plan)}
    run = subprocess.run(job, capture_output=True, text=True, timeout=50, cwd="/", env=environ)
    assert run.returncode == 0 and "not used" not in run.stderr, run.stderr
    used = read_plans(tmp_path / "used.json")
    assert {name: used[name] for name in plans} == plans


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([sys.executable, TRAIN, "3"], f"ended after 3 steps, and {NEEDED_STEPS} are needed"),
        ([sys.executable, TRAIN, "0"], "failed: rank"),
        (["true"], "ended without a call of hvd.init()"),
    ],
)
def test_a_program_that_shows_no_steps_is_one_line(
    words: list[str], said: str, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    done = bench("-np", "2", "--", *words, str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert pids() == []


def test_a_program_that_never_trains_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    done = bench("-np", "2", "--seconds", "5", "--", "sleep", "600")
    assert done.returncode == 1 and time.monotonic() - began < 30
    assert "was ended after 3 s, without a call of hvd.init()" in done.stderr and done.stderr.count("\n") == 1


def test_a_program_on_a_host_that_cannot_be_reached_is_one_line() -> None:
    done = bench("-H", "no-such-host.invalid:2", "--", "true")
    assert done.returncode == 1 and done.stdout == ""
    assert "no-such-host.invalid" in done.stderr and done.stderr.count("\n") == 1


def test_an_interrupt_ends_the_program_too(tmp_path: Path, pids: Callable[[], list[int]]) -> None:
    command = [sys.executable, "-m", "casync", "bench", "-np", "2", "--", sys.executable, TRAIN, "10000", str(tmp_path)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
    while len(pids()) < 4:
        assert job.poll() is None
        time.sleep(0.01)
    job.send_signal(signal.SIGINT)
    said = job.communicate(timeout=40)[1]
    assert job.returncode == 130 and "interrupted; nothing is left running" in said and said.count("\n") == 1
    assert pids() == []


def test_what_a_rank_tells_is_put_together() -> None:
    heard = Heard()
    assert "without a call of hvd.init()" in heard.so_far()
    assert not heard.add({"steps": 1}) and "after 1 step, and" in heard.so_far()
    assert not heard.add({"name": "w", "shape": [3, 2], "dtype": "float32", "ready_s": 0.5})
    assert heard.step is None
    assert heard.add({"computes_s": 2.0})
    assert heard.step is not None and heard.step.computes_s == 2.0 and heard.step.gradients[0].shape == (3, 2)


def test_bfloat16_without_the_package_that_makes_it_is_refused_by_name() -> None:
    script = """
import sys
sys.modules["ml_dtypes"] = None  # as if it were not installed
from casync.bench import ways
from casync.observe.step_profile import Gradient
try:
    ways.dtype_of(Gradient("w", (3,), "bfloat16", 0.0))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, cwd="/")
    assert "NotAvailableError gradient w is bfloat16" in done.stdout and "ml_dtypes" in done.stdout, done.stderr
