"""`casync` as a backend of torch.distributed, in jobs that torchrun starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port

HERE = Path(__file__).parent
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "CASYNC_", "HOROVOD_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)} | {"OMP_NUM_THREADS": "1"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def torchrun(folder: Path, ranks: int, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
    with subprocess.Popen(
        command, cwd=folder, env=CLEAN | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            stdout, stderr = job.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            job.terminate()  # it ends its ranks then
            raise
    return subprocess.CompletedProcess(command, job.returncode, stdout, stderr)


def need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")


def trained(folder: Path, ranks: int, what: str, codec: str, **environ: str) -> dict[str, Any]:
    done = torchrun(folder, ranks, str(HERE / "training.py"), what, codec, str(folder / codec), **environ)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr.replace("FutureWarning", ""), done.stderr
    note: dict[str, Any] = json.loads(done.stdout)
    return note


@pytest.mark.parametrize("leaves", [False, True])
def test_every_collective(tmp_path: Path, leaves: bool) -> None:
    """Whether or not the program destroys its groups before it ends, and by either name."""
    environ = {"LEAVE": "1", "BACKEND": "cpu:casync,cuda:casync"} if leaves else {}
    done = torchrun(tmp_path, 3, str(HERE / "collectives.py"), **environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 3, done.stderr


@pytest.mark.parametrize(
    ("what", "ranks", "part", "device"),
    [
        ("ddp", 2, 0.1, "cpu"),
        ("fsdp", 2, 0.75, "cpu"),
        ("hsdp", 4, 0.1, "cpu"),
        pytest.param("ddp", 2, 0.1, "cuda", marks=pytest.mark.gpu),
        pytest.param("fsdp", 2, 0.75, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_training_is_compressed_and_replicas_stay_alike(
    tmp_path: Path, what: str, ranks: int, part: float, device: str
) -> None:
    """FSDP gathers parameters, which are exact; its gradients are what is compressed. Ranks share a GPU."""
    if device == "cuda":
        need_gpu()
    exact, compressed = (trained(tmp_path, ranks, what, codec, DEVICE=device) for codec in ("none", "onebit"))
    for note in (exact, compressed):
        assert note["alike"] and note["restored"] and note["loss"] < 0.5
    assert abs(compressed["loss"] - exact["loss"]) < 0.05
    assert compressed["sent"] < part * exact["sent"]


@pytest.mark.gpu
def test_every_collective_on_a_gpu(tmp_path: Path) -> None:
    need_gpu()
    done = torchrun(tmp_path, 3, str(HERE / "collectives.py"), DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 3, done.stderr


def test_what_other_programs_do(tmp_path: Path) -> None:
    """Sizes that do not fit, callbacks that wait, hooks of PyTorch's, optimizers in turn, and groups made again."""
    done = torchrun(tmp_path, 2, str(HERE / "corners.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2, done.stderr


def test_residuals_are_kept_without_the_scale_of_a_scaler(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, str(HERE / "scaled.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2, done.stderr
    assert "GradScaler" not in done.stderr, done.stderr


def without_torchrun(folder: Path, ranks: int, *words: str) -> list[tuple[int, str]]:
    """The ends of the ranks: torchrun would kill the others as soon as one has failed."""
    common = CLEAN | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job = [
        subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=common | {"RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=120)[0] for process in job]
    finally:
        for process in job:
            process.kill()
    return [(process.returncode, text) for process, text in zip(job, texts, strict=True)]


@pytest.mark.parametrize(
    ("door", "how", "error"),
    [
        ("ddp", "raise", "AbortedError"),
        ("ddp", "kill", "PeerFailureError"),
        ("powersgd", "kill", "PeerFailureError"),
        ("fp16", "kill", "PeerFailureError"),
        ("fsdp", "kill", "PeerFailureError"),
        ("plain", "disagree", "MismatchError"),
    ],
)
def test_the_others_hear_by_name_of_a_rank_that_fails(tmp_path: Path, door: str, how: str, error: str) -> None:
    ends = without_torchrun(tmp_path, 3 if how != "disagree" else 2, str(HERE / "failing.py"), door, how)
    for rank, (status, text) in enumerate(ends):
        if rank != 1 or how == "disagree":
            assert (status, text.partition(":")[0]) == (1, error), ends
    if how == "raise":
        assert "the data of rank 1 are broken" in ends[0][1], ends
    if how == "disagree":
        assert all("[100]" in text and "[101]" in text and "failing.py:" in text for _, text in ends), ends


def test_a_job_that_torchrun_starts_again_meets_anew(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "--max-restarts", "3", str(HERE / "restarted.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2, done.stderr


def test_memory_stays_as_it_is(tmp_path: Path) -> None:
    """Names are used again. By hand with 1,000,000."""
    done = torchrun(tmp_path, 2, str(HERE / "many.py"), "20000")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4
