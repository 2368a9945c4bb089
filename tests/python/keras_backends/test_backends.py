"""Keras decides for a backend when it is imported, so every one but TensorFlow has processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.processes import casyncrun

CASES = Path(__file__).parent / "on_torch" / "cases.py"
PYTEST = Path(__file__).resolve().parents[3] / "tools" / "mpi_pytest.py"
REFUSED = """
from casync.errors import NotAvailableError
try:
    import casync.keras as hvd, keras
    hvd.init()
    hvd.DistributedOptimizer(keras.optimizers.SGD())
except NotAvailableError as error:
    print(error)
"""
OLD = "import sys, types; sys.modules['keras'] = types.ModuleType('keras'); sys.modules['keras'].__version__ = '2.15.0'"
with_keras = pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")


def output_of(folder: Path, *command: str, backend: str) -> str:
    environment = {**os.environ, "KERAS_BACKEND": backend, "KERAS_HOME": str(folder)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@with_keras
@pytest.mark.timeout(180)
def test_torch(tmp_path: Path) -> None:
    command = casyncrun(2, PYTEST, "keras-torch", CASES)
    assert " passed" in output_of(tmp_path, *command, backend="torch")


@with_keras
def test_jax_is_refused_by_name(tmp_path: Path) -> None:
    said = output_of(tmp_path, sys.executable, "-c", REFUSED, backend="jax")
    if find_spec("jax") is None:
        assert "casync.keras needs Keras 3, which cannot be imported here (No module named 'jax')" in said
    else:
        assert "Keras runs on jax, and casync.keras on TensorFlow and torch: set KERAS_BACKEND=" in said


@with_keras
def test_keras_without_its_tensorflow(tmp_path: Path) -> None:
    without = "import sys; sys.modules['tensorflow'] = None"
    said = output_of(tmp_path, sys.executable, "-c", without + REFUSED, backend="tensorflow")
    assert "casync.keras needs Keras 3, which cannot be imported here (" in said and "tensorflow" in said


def test_keras_2_is_refused_by_name(tmp_path: Path) -> None:
    said = output_of(tmp_path, sys.executable, "-c", OLD + REFUSED, backend="torch")
    assert "casync.keras needs Keras 3, and this is 2.15.0: pip install 'keras>=3'" in said


@pytest.mark.skipif(find_spec("keras") is not None, reason="keras is installed")
def test_without_keras(tmp_path: Path) -> None:
    said = output_of(tmp_path, sys.executable, "-c", REFUSED, backend="torch")
    assert "casync.keras needs Keras 3, which cannot be imported here" in said
    assert "pip install keras" in said
