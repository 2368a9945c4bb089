"""Processes that find each other without MPI, and what they say when they do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "CASYNC_", "HOROVOD_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}

SUMS = """
    import json, os, sys
    import numpy as np
    import casync.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.full(100_000, hvd.rank() + 1, np.float32), name="g", op=hvd.Sum)
    maps = open("/proc/self/maps").read()
    print(json.dumps({"rank": hvd.rank(), "size": hvd.size(), "local": hvd.local_rank(), "total": float(total[0]),
                      "mpi": "libmpi" in maps, "enabled": hvd.mpi_enabled()}))
"""


def start(folder: Path, program: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    """In `folder`. Not from a file there: a rank would read it while it is written for the next one."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=folder, env=CLEAN | environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def plain(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | more


def ended(processes: list[subprocess.Popen[str]], timeout: float = 60.0) -> list[str]:
    until = time.monotonic() + timeout
    try:
        return [process.communicate(timeout=max(1.0, until - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def notes(outputs: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(text) for text in re.findall(r"\{[^{}]*\}", "".join(outputs))]  # two may share a line
    return sorted(found, key=lambda note: note["rank"])


@pytest.mark.parametrize("size", [2, 5])
def test_plain_variables_form_a_world_without_mpi(tmp_path: Path, size: int) -> None:
    port = free_port()
    outputs = ended([start(tmp_path, SUMS, plain(rank, size, port)) for rank in range(size)])
    total = size * (size + 1) / 2
    assert notes(outputs) == [
        {"rank": rank, "size": size, "local": rank, "total": total, "mpi": False, "enabled": False}
        for rank in range(size)
    ], outputs


def test_a_folder_is_a_place_to_meet(tmp_path: Path) -> None:
    # A later init() meets there again, whoever spells the path.
    folder = str(tmp_path / "meet")
    program = SUMS.replace(
        "hvd.init()", f"hvd.init(store={folder!r}); hvd.shutdown(); hvd.init(store=str(''.join(list({folder!r}))))"
    )
    outputs = ended([start(tmp_path, program, {"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)])
    assert [note["total"] for note in notes(outputs)] == [3.0, 3.0], outputs


def test_worlds_and_process_sets_one_after_the_other(tmp_path: Path) -> None:
    program = """
        import json
        import numpy as np
        import casync.numpy as hvd
        totals = []
        for _ in range(3):
            pair = hvd.ProcessSet([0, 2])
            hvd.init(process_sets=[pair])
            totals.append(float(hvd.allreduce(np.ones(5, np.float32), name="g", op=hvd.Sum)[0]))
            if pair.included():
                totals.append(float(hvd.allreduce(np.ones(5, np.float32), name="h", op=hvd.Sum, process_set=pair)[0]))
            hvd.shutdown()
        print(json.dumps({"rank": 0, "totals": totals}))
    """
    port = free_port()
    outputs = ended([start(tmp_path, program, plain(rank, 3, port)) for rank in range(3)])
    assert sorted(len(note["totals"]) for note in notes(outputs)) == [3, 6, 6], outputs
    assert all(total in (3.0, 2.0) for note in notes(outputs) for total in note["totals"])


def test_a_world_smaller_than_its_size_is_named_in_time(tmp_path: Path) -> None:
    port = free_port()
    begun = time.monotonic()
    outputs = ended([
        start(tmp_path, SUMS, plain(rank, 4, port, CASYNC_START_TIMEOUT_SECONDS="3")) for rank in (0, 1)
    ])  # fmt: skip
    assert time.monotonic() - begun < 20
    for rank, output in enumerate(outputs):
        assert f"rank {rank} at 127.0.0.1 has waited in init() for ranks [2, 3] of 4" in output, output


def test_two_processes_of_one_rank_are_told(tmp_path: Path) -> None:
    port = free_port()
    numbers = (0, 1, 1)
    outputs = ended([
        start(tmp_path, SUMS, plain(rank, 3, port, CASYNC_START_TIMEOUT_SECONDS="4")) for rank in numbers
    ])  # fmt: skip
    assert sum("two processes say that they are rank 1 of 3" in output for output in outputs) == 1, outputs
    assert sum("has waited in init() for ranks [2] of 3" in output for output in outputs) == 2, outputs


def test_two_jobs_at_one_port_are_told(tmp_path: Path) -> None:
    port = free_port()
    waiting = "import time; time.sleep(8)"
    first = [start(tmp_path, SUMS + f"\n    {waiting}", plain(rank, 2, port)) for rank in range(2)]
    time.sleep(4)
    late = {"CASYNC_START_TIMEOUT_SECONDS": "4"}
    outputs = ended([start(tmp_path, SUMS, plain(rank, 2, port, **late)) for rank in range(2)])
    assert f"rank 0 cannot listen at MASTER_PORT={port}" in outputs[0], outputs[0]
    assert "two processes say that they are rank 1 of 2" in outputs[1], outputs[1]
    assert [note["total"] for note in notes(ended(first))] == [3.0, 3.0]


def test_a_killed_rank_is_named_at_once_though_its_child_lives_on(tmp_path: Path) -> None:
    """As the workers of a DataLoader do for a while: they have copies of its sockets. No launcher ends the others."""
    program = """
        import json, os, signal, sys, time
        import numpy as np
        import casync.numpy as hvd
        hvd.init()
        hvd.allreduce(np.ones(10, np.float32), name="g")
        if hvd.rank() == 1:
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(0)
                os.wait()
                for descriptor in range(3):  # which the test reads to their end
                    os.close(descriptor)
                until = time.monotonic() + 12
                while not os.path.exists("over") and time.monotonic() < until:
                    time.sleep(0.05)
                os._exit(0)
            while not os.path.exists("reduced"):  # what died with unread data may take along what it has sent
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        open("reduced", "w").close()
        begun = time.monotonic()
        try:
            hvd.allreduce(np.ones(10, np.float32), name="g")
        except hvd.HorovodInternalError as error:
            seconds = time.monotonic() - begun
            print(json.dumps({"rank": 0, "peer": error.peer, "seconds": seconds, "said": str(error)}))
            sys.stdout.flush()
            open("over", "w").close()
            os._exit(0)
    """
    port = free_port()
    outputs = ended([start(tmp_path, program, plain(rank, 2, port)) for rank in range(2)])
    (note,) = notes(outputs)
    assert note["peer"] == 1 and note["seconds"] < 3, note
    assert outputs[1] == "", "neither the child nor its own child has anything to say"


def torchrun(folder: Path, program: str, *arguments: str, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments, str(path)],
        cwd=folder, env=CLEAN | {"OMP_NUM_THREADS": "1"}, text=True, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_torchrun_starts_a_world_without_mpi(tmp_path: Path) -> None:
    done = torchrun(tmp_path, SUMS, "--standalone")
    assert done.returncode == 0, done.stderr
    assert [(note["rank"], note["total"], note["mpi"]) for note in notes([done.stdout])] == [
        (0, 3.0, False),
        (1, 3.0, False),
    ]


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("launcher", ["torchrun", "plain"])
def test_the_scripts_own_process_group_lives_beside_it(tmp_path: Path, order: str, launcher: str) -> None:
    both = {"before": "group(); hvd.init()", "after": "hvd.init(); group()"}[order]
    program = f"""
        import json, torch
        import torch.distributed as dist
        import casync.torch as hvd
        def group(): dist.init_process_group("gloo")
        {both}
        one = torch.ones(10)
        dist.all_reduce(one)
        total = hvd.allreduce(torch.full((10,), float(hvd.rank() + 1)), name="g", op=hvd.Sum)
        print(json.dumps({{"rank": hvd.rank(), "gloo": float(one[0]), "total": float(total[0])}}))
        dist.destroy_process_group()
    """
    if launcher == "torchrun":
        done = torchrun(tmp_path, program, "--standalone")
        outputs = [done.stdout, done.stderr]
    else:
        port = free_port()
        outputs = ended([start(tmp_path, program, plain(rank, 2, port)) for rank in range(2)])
    assert [(note["gloo"], note["total"]) for note in notes(outputs)] == [(2.0, 3.0)] * 2, outputs


def test_a_restart_by_torchrun_meets_anew(tmp_path: Path) -> None:
    program = """
        import json, os, signal
        import numpy as np
        import casync.numpy as hvd
        hvd.init()
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        total = hvd.allreduce(np.full(10, hvd.rank() + 1, np.float32), name="g", op=hvd.Sum)
        print(json.dumps({"rank": hvd.rank(), "attempt": attempt, "total": float(total[0])}), flush=True)
        if attempt == 0 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()
    """
    done = torchrun(tmp_path, program, "--standalone", "--max-restarts", "1")
    assert done.returncode == 0, done.stderr
    assert sorted((note["attempt"], note["total"]) for note in notes([done.stdout])) == [(0, 3.0)] * 2 + [(1, 3.0)] * 2


def test_a_name_that_does_not_resolve_is_named(tmp_path: Path) -> None:
    environ = plain(1, 2, free_port(), CASYNC_START_TIMEOUT_SECONDS="3") | {"MASTER_ADDR": "no.such.host.invalid"}
    (output,) = ended([start(tmp_path, SUMS, environ)])
    assert re.search("MASTER_ADDR=no.such.host.invalid cannot be resolved", output), output


@pytest.mark.parametrize("with_torch", [0, 1])
def test_one_rank_may_import_torch_and_the_others_not(tmp_path: Path, with_torch: int) -> None:
    pytest.importorskip("torch")
    port = free_port()
    programs = ["import torch\n" + textwrap.dedent(SUMS) if rank == with_torch else SUMS for rank in range(3)]
    outputs = ended([start(tmp_path, program, plain(rank, 3, port)) for rank, program in enumerate(programs)])
    assert [note["total"] for note in notes(outputs)] == [6.0] * 3, outputs


@pytest.mark.parametrize("torch_too", [False, True])
def test_ranks_with_one_secret_meet_and_another_is_told(tmp_path: Path, torch_too: bool) -> None:
    if torch_too:
        pytest.importorskip("torch")
    program = "import torch\n" * torch_too + textwrap.dedent(SUMS)
    secret = {"CASYNC_JOB_SECRET": "0123456789abcdef"}
    port = free_port()
    outputs = ended([start(tmp_path, program, plain(rank, 2, port, **secret)) for rank in range(2)])
    assert [note["total"] for note in notes(outputs)] == [3.0, 3.0], outputs
    other = {"CASYNC_JOB_SECRET": "fedcba9876543210", "CASYNC_START_TIMEOUT_SECONDS": "6"}
    port = free_port()
    outputs = ended([
        start(tmp_path, program, plain(0, 2, port, **secret | {"CASYNC_START_TIMEOUT_SECONDS": "6"})),
        start(tmp_path, program, plain(1, 2, port, **other)),
    ])  # fmt: skip
    assert "does not know this job's secret" in "".join(outputs), outputs


def test_too_few_descriptors_are_said_at_once_and_a_soft_limit_is_raised(tmp_path: Path) -> None:
    """Each of five ranks has four others, with eleven connections to each."""
    limited = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (46, HARD))
    """
    for hard, fits in ((4096, True), (46, False)):
        program = textwrap.dedent(limited.replace("HARD", str(hard))) + textwrap.dedent(SUMS)
        port = free_port()
        begun = time.monotonic()
        outputs = ended([start(tmp_path, program, plain(rank, 5, port, CASYNC_TCP_STREAMS="10")) for rank in range(5)])
        if fits:
            assert [note["total"] for note in notes(outputs)] == [15.0] * 5, outputs
        else:
            assert time.monotonic() - begun < 40  # and not after the start's time-out
            for output in outputs:
                assert re.search(
                    r"needs 44 descriptors beside the \d+ that are open, .* may have 46: .*ulimit -n", output
                )
