"""mypy on a user's script: the interface has types, and a wrong argument is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.files import ROOT, load

SCRIPT = """
from typing import assert_type

import torch

import casync.torch as hvd

hvd.init()
assert_type(hvd.rank(), int)
assert_type(hvd.allreduce(torch.ones(3), op=hvd.Sum, compression="onebit"), torch.Tensor)
assert_type(hvd.allreduce_async(torch.ones(3), process_set=hvd.global_process_set), int)
assert_type(hvd.add_process_set([0]), hvd.ProcessSet)
model = torch.nn.Linear(3, 3)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    model.named_parameters(),
    compression={"*.bias": "none", "*": hvd.Compression.onebit()},
)
as_torch: torch.optim.Optimizer = optimizer
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
assert_type(hvd.counters()["sent_bytes"], int)
"""
WRONG = {
    "hvd.allreduce(torch.ones(3), compression=3)": "compression",
    "hvd.allreduce(torch.ones(3), process_set=[0, 1])": "process_set",
    "hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), compression=torch.float16)": "compression",
    "hvd.DistributedOptimizer(torch.optim.SGD(model.parameters())).synchronise()": "synchronise",
}


def mypy(folder: Path, text: str) -> str:
    """Run mypy over a script, with the package as it is installed, and return what it says."""
    load("tools/lint.py").link_package()
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={ROOT / 'build/mypy_user'}", str(script)]
    environ = {**os.environ, "MYPYPATH": str(ROOT / "build/mypy")}
    quiet = ["--follow-imports=silent", "--ignore-missing-imports", "--no-error-summary"]
    done = subprocess.run([*command, *quiet], env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_users_script_has_types(tmp_path: Path) -> None:
    assert mypy(tmp_path, SCRIPT) == ""


@pytest.mark.timeout(300)
def test_a_wrong_argument_is_found(tmp_path: Path) -> None:
    said = mypy(tmp_path, "\n".join([SCRIPT, *WRONG])).splitlines()
    errors = [line for line in said if ": error: " in line]
    assert len(errors) == len(WRONG), errors
    for error, word in zip(errors, WRONG.values(), strict=True):
        assert word in error
