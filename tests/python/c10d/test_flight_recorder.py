"""What groups leave for `torchfrtrace`, which is PyTorch's own and knows nothing of CaSync."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from casync.torch.flight_recorder import Recorder, calls_kept, sizes_of

from tests.python.c10d.test_backend import torchrun

HERE = Path(__file__).parent


def torchfrtrace(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_rank_that_leaves_out_a_collective_is_found(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 3, str(HERE / "desync.py"), TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/bad/rank_")
    assert "Error" in done.stdout, done.stderr
    assert "Error type" not in torchfrtrace(tmp_path / "good")
    said = torchfrtrace(tmp_path / "bad")
    assert "desync.py" in said, "the program's line"
    assert "COLLECTIVE_TYPE_MISMATCH" in said and "all_reduce" in said and "broadcast" in said


def test_entries_say_what_was_called_and_where(tmp_path: Path) -> None:
    recorder = Recorder(calls=2)
    recorder.know("0", [4, 7], 7)
    for size in (1, 2, 3):
        sizes = sizes_of([torch.zeros(size, 5, dtype=torch.bfloat16)])
        entry = recorder.begin("0", "all_reduce", sizes, sizes)
        if size < 3:
            entry.is_over(None)
    path = recorder.dump(f"{tmp_path}/rank_")
    assert path.name == "rank_7"
    told = pickle.loads(path.read_bytes())
    assert told["pg_config"] == {"0": {"name": "0", "desc": "undefined", "ranks": "[4, 7]"}}
    second, third = told["entries"]  # the first was pushed out
    assert (second["record_id"], second["collective_seq_id"], second["state"]) == (1, 2, "completed")
    assert (third["record_id"], third["collective_seq_id"], third["state"]) == (2, 3, "started")
    assert third["input_sizes"] == [[3, 5]] and third["input_dtypes"] == ["Bfloat16"]
    assert third["profiling_name"] == "nccl:all_reduce"
    assert any(frame["name"] == "test_entries_say_what_was_called_and_where" for frame in third["frames"])


def test_a_call_that_was_refused_was_none(tmp_path: Path) -> None:
    recorder = Recorder(calls=5)
    recorder.know("0", [0], 0)
    recorder.withdraw(recorder.begin("0", "reduce", (), ()))
    assert recorder.begin("0", "barrier", (), ()).number == 1
    assert len(pickle.loads(recorder.dump(f"{tmp_path}/rank_").read_bytes())["entries"]) == 1


def test_a_size_of_the_buffer_that_is_no_number_is_told_and_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert [calls_kept({"TORCH_FR_BUFFER_SIZE": given}) for given in ("", " 12 ", "0")] == [2000, 12, 0]
    assert calls_kept({}) == 2000 and not caplog.records
    for given in ("many", "-3", "1e3"):
        assert calls_kept({"TORCH_FR_BUFFER_SIZE": given}) == 2000
        assert f"TORCH_FR_BUFFER_SIZE={given} is no number of calls" in caplog.records[-1].getMessage()
