"""Whole jobs: what becomes of operations that MXNet's engine still has when a rank's program ends."""

import subprocess
from importlib.util import find_spec

import pytest

from support.processes import casyncrun

pytestmark = [
    pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed"),
    pytest.mark.mpi,
    pytest.mark.timeout(120),
]

PROGRAM = """
import sys, time
import casync.mxnet as hvd
from casync.mxnet.loading import mx

hvd.init(timeout_s=20.0)
values = mx.nd.ones(10)
if hvd.rank() > 0:
    time.sleep(1.0)
hvd.allreduce_(values, op=hvd.Sum, name="last")
if hvd.rank() > 0:
    print("sum", values.asnumpy().sum())
elif len(sys.argv) > 1:
    hvd.shutdown()
    print("shut down with", values.asnumpy().sum())
"""


@pytest.mark.parametrize("explicit", [False, True], ids=["at the end", "by shutdown"])
def test_a_rank_that_ends_first_takes_part_in_what_it_gave_the_engine(explicit, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    start = casyncrun(2, str(program), *(["now"] if explicit else []))
    ended = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "sum 20.0" in ended.stdout and "Error" not in ended.stderr
    assert ("shut down with 20.0" in ended.stdout) == explicit


def test_a_rank_that_fails_ends_the_job(tmp_path):
    """Though its engine, and the other's, still have operations that nobody will meet."""
    program = tmp_path / "program.py"
    alone = "hvd.allreduce(mx.nd.ones(3), name=f'only {hvd.rank()}')\nvalues = "
    text = PROGRAM.replace("values = ", alone).replace("time.sleep(1.0)", "raise ValueError('enough')")
    program.write_text(text)
    ended = subprocess.run(casyncrun(2, str(program)), cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "ValueError: enough" in ended.stderr
