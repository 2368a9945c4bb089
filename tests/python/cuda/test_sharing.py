"""Several ranks on one GPU: casyncrun says so, once, by what CUDA calls it and not by its number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.standin.programs import BEGIN, job

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")

VISIBLE = """
import os

os.environ["CUDA_VISIBLE_DEVICES"] = {number}
"""
WITH_HANDLES = """
for name in ("a", "b"):
    hvd.allreduce_(w, name=name)
"""
WITH_COMPLETIONS = """
import threading

from casync.session import default
from casync.tensors.signature import OpKind, OpSignature

session = default.session()
terms = session.register(OpSignature("w", OpKind.ALLREDUCE, "float32", (4,), on_device=True))
address, done = tensors.TENSORS.address(w), threading.Event()
session.submit(
    terms, address, address, w, completion=lambda *_: done.set(), device=tensors.TENSORS.device(w)
)
done.wait()
"""


@pytest.mark.parametrize(
    ("before", "after", "warnings"),
    [
        ("", WITH_HANDLES, 1),
        ("", WITH_COMPLETIONS, 1),
        ("", "driver.current.device = hvd.local_rank()" + WITH_HANDLES, 0),
        (VISIBLE.format(number="os.environ['CASYNC_LOCAL_RANK']"), WITH_HANDLES, 0),
        (VISIBLE.format(number="'1'"), WITH_HANDLES, 1),
    ],
    ids=["by default", "with completions", "a number each", "each sees its own", "all see one"],
)
def test_ranks_that_use_one_gpu_are_warned_of(before: str, after: str, warnings: int, tmp_path: Path) -> None:
    said = job(2, before + BEGIN + after + "hvd.shutdown()", tmp_path).stderr
    assert said.count("ranks 0, 1 on host ") == said.count("use one GPU, GPU-00000000-0000-") == warnings, said
