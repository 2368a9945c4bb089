"""The wrapper's wire format and the names it exports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from casync.launcher.rank import wire
from casync.launcher.rank.place import mpi_place, rank_names

ENTRY = (sys.executable, "-I", "-S", str(Path(wire.__file__).with_name("__main__.py")))
PLACE = {
    "rank": 3,
    "size": 4,
    "local_rank": 1,
    "local_size": 2,
    "cross_rank": 1,
    "cross_size": 2,
    "hostname": "h2",
    "master_addr": "10.0.0.1",
    "master_port": 5000,
}


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_survive_every_cut(step: int) -> None:
    stream = wire.pack("O", b"some bytes") + wire.pack("X", {"status": -9}) + wire.pack("K", b"")
    unpacker = wire.Unpacker()
    frames = [f for at in range(0, len(stream), step) for f in unpacker.feed(stream[at : at + step])]
    assert frames == [("O", b"some bytes"), ("X", b'{"status": -9}'), ("K", b"")]


def test_a_rank_knows_its_place_under_every_name() -> None:
    names = rank_names(PLACE, {})
    for prefix in ("CASYNC", "HOROVOD"):
        assert [names[f"{prefix}_{key}"] for key in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")] == [
            "3",
            "4",
            "1",
            "2",
        ]
        assert [names[f"{prefix}_{key}"] for key in ("CROSS_RANK", "CROSS_SIZE", "HOSTNAME")] == ["1", "2", "h2"]
    assert [names[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")] == [
        "3", "4", "1", "10.0.0.1", "5000",
    ]  # fmt: skip
    assert names["PYTHONUNBUFFERED"] == "1"


def test_what_the_user_set_for_torch_stays() -> None:
    names = rank_names(PLACE, {"MASTER_ADDR": "mine", "MASTER_PORT": "1"})
    assert "MASTER_ADDR" not in names and "MASTER_PORT" not in names and names["RANK"] == "3"


def test_a_rank_of_another_job_is_not_inherited() -> None:
    names = rank_names(PLACE, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    assert [names[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["3", "4", "1"]


OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
OMPI_LOCAL = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (OMPI | OMPI_LOCAL, (1, 4, 1, 2)),
        (OMPI | OMPI_LOCAL | SLURM, (1, 4, 1, 2)),  # mpirun inside an allocation
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (1, 4, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4, None, None)),
        (SLURM | {"PMIX_RANK": "5"}, (5, 8, 3, None)),
        (SLURM, (5, 8, 3, None)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "6"}, (5, 6, 3, None)),  # a step of fewer tasks than the allocation has
    ],
)
def test_who_started_the_rank_says_its_place(environ: dict[str, str], place: tuple[int | None, ...]) -> None:
    found = mpi_place(environ, "h")
    assert tuple(found[key] for key in ("rank", "size", "local_rank", "local_size")) == place


def test_without_casyncrun_it_becomes_the_command() -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", wire.LAUNCHER)}
    for name, value in (("RANK", 5), ("SIZE", 6), ("LOCAL_RANK", 1), ("LOCAL_SIZE", 2)):
        environ[f"OMPI_COMM_WORLD_{name}"] = str(value)
    done = subprocess.run(
        [*ENTRY, "--", "sh", "-c", "echo $CASYNC_RANK $CASYNC_CROSS_RANK"],
        env=environ, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.stdout == "5 2\n"


def test_outside_of_a_job_it_says_so() -> None:
    done = subprocess.run(
        [*ENTRY, "--", "true"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "start it through casyncrun" in done.stderr


def test_the_wrapper_needs_the_standard_library_only() -> None:
    done = subprocess.run(ENTRY, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: casync/launcher/rank/__main__.py -- COMMAND ...\n")


def test_an_order_right_behind_the_word_to_go_is_obeyed() -> None:
    program = """
        import signal, socket
        from casync.launcher.rank import wire
        from casync.launcher.rank.supervisor import Supervisor
        ours, theirs = socket.socketpair()
        theirs.sendall(wire.pack("G", {"place": PLACE}) + wire.pack("S", {"signal": int(signal.SIGTERM)}))
        rank = Supervisor(ours, wire.Unpacker(), False)
        print(rank.run(["sleep", "30"], rank.wait_for_go()))
    """
    program = textwrap.dedent(program).replace("PLACE", repr(PLACE))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert done.stdout == "-15\n", done.stderr
