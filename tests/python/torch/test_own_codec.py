"""A CompLL file of the user's own in `compression=`, over real ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

ABSMAX = Path(__file__).parents[2] / "compll" / "quantisers" / "absmax.cll"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CASYNC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "own-codecs"))


def test_it_is_compiled_and_every_rank_gets_the_same_mean(job):
    """Two levels of quantisation, a worker's and the owner's, each off by at most half a step of 1/7 of the largest
    magnitude, and what the owner sends is identical everywhere.
    """
    status, output, notes = job(3, f"""
    torch.manual_seed(rank)
    x = torch.randn(20_000)
    y = hvd.allreduce(x, name="g", compression={str(ABSMAX)!r})
    note(x=x.numpy().tobytes().hex(), y=y.numpy().tobytes().hex(), codec=hvd.plans()["allreduce.g"].codec)
    """, timeout=60)  # fmt: skip
    assert status == 0, output
    assert {notes[rank]["codec"].partition("@")[0] for rank in range(3)} == {"absmax"}
    assert len({notes[rank]["y"] for rank in range(3)}) == 1
    x = np.array([np.frombuffer(bytes.fromhex(notes[rank]["x"]), np.float32) for rank in range(3)], np.float64)
    y = np.frombuffer(bytes.fromhex(notes[0]["y"]), np.float32)
    for begin in range(0, 20_000, 512):  # a unit
        unit = slice(begin, begin + 512)
        largest = np.abs(x[:, unit]).max()
        assert np.abs(y[unit] - x[:, unit].mean(0)).max() <= 2 * largest / 14 * 1.001


def test_ranks_with_different_files_disagree_by_name(job, tmp_path):
    status, output, notes = job(2, f"""
    text = open({str(ABSMAX)!r}).read()
    if rank == 1:
        text = text.replace("unit = 512", "unit = 1024")
    path = f"mine{{rank}}/absmax.cll"
    os.makedirs(f"mine{{rank}}")
    open(path, "w").write(text)
    try:
        hvd.allreduce(torch.ones(10_000), name="g", compression=path)
    except hvd.MismatchError as error:
        note(text=str(error))
    """, timeout=60)  # fmt: skip
    assert all(notes[rank]["text"].count("absmax@") == 2 for rank in range(2)), output
