"""`casync bench`: what it concludes, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casync.bench import ways
from casync.plan import read_plans


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
        (["-np", "2", "--", "python", "train.py"], "not available"),
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
