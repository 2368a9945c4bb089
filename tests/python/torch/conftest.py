"""A world of one, opened for each test that asks for it, and jobs of several ranks."""

import json
import os
import signal
import subprocess
import textwrap

import casync.torch as hvd
import pytest

from support.processes import casyncrun


@pytest.fixture
def world():
    hvd.init(timeout_s=20.0)
    yield
    hvd.shutdown()


PRELUDE = """
    import json, os, signal, sys, time
    import torch
    torch.set_num_threads(1)
    import casync.torch as hvd
    hvd.init(peer_timeout_s=4.0, stall_warning_s=1.0, timeout_s=20.0)
    rank, size = hvd.rank(), hvd.size()
    hvd.allreduce(torch.ones(1000), name="first")

    def note(**what):
        with open(f"rank{rank}.json", "w") as file:
            json.dump({"at": time.time(), **what}, file)
"""


@pytest.fixture
def job(tmp_path):
    """`job(np, body)` runs the prelude and `body` on np ranks; returns (exit status, output, what each rank noted)."""

    def run(ranks, body, timeout=40):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(body))
        command = casyncrun(ranks, script)
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=10)
            pytest.fail(f"not done after {timeout} s:\n{output}")
        notes = {int(path.stem[4:]): json.loads(path.read_text()) for path in tmp_path.glob("rank*.json")}
        return process.returncode, output, notes

    return run
