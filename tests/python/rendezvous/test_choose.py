"""Who started this process, by the launcher's variables alone."""

from __future__ import annotations

import pytest

from casync.errors import CasyncError
from casync.rendezvous.choose import Started, choose

PLAIN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
TORCHRUN = PLAIN | {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
MALFORMED = ("2.0", "two", "-2", "+2", "0", " ", "²", "9" * 20, "9" * 5000, "1048577")
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}


@pytest.mark.parametrize(("environ", "kind"), [
    ({}, "alone"),
    (MPI, "mpi"),
    ({"OMPI_COMM_WORLD_SIZE": "1"}, "alone"),
    ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpi"),
    ({"PMIX_RANK": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "mpi"),
    (MPI | PLAIN | {"CASYNC_SIZE": "4", "HOROVOD_SIZE": "4"}, "mpi"),
    ({"CASYNC_SIZE": "1", "CASYNC_RANK": "0"}, "alone"),
    ({"CASYNC_SIZE": "1"} | PLAIN, "alone"),
    (PLAIN, "tcp"),
    (PLAIN | {"WORLD_SIZE": "1", "RANK": "0"}, "alone"),
    ({"WORLD_SIZE": "1", "RANK": "0"}, "alone"),
    ({"WORLD_SIZE": "4"}, "alone"),
    ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "alone"),
    (MPI | {"CASYNC_SIZE": "1"}, "alone"),  # a child of a rank that is to be a world of its own
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, "alone"),  # in an sbatch script, without srun
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, "alone"),
    ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "alone"),
    (TORCHRUN, "tcp"),
    ({"WORLD_SIZE": "two"}, "alone"),  # by itself a variable may be left over from something else
    ({"RANK": "0"}, "alone"),
    ({"MASTER_ADDR": "h1", "MASTER_PORT": "29500"}, "alone"),
    ({"WORLD_SIZE": "1", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}, "alone"),
    ({"CASYNC_SIZE": "1"} | PLAIN | {"WORLD_SIZE": "two"}, "alone"),
    ({"SLURM_NTASKS": "two", "HOROVOD_SIZE": "two"}, "alone"),
])  # fmt: skip
def test_who_started_this_process(environ: dict[str, str], kind: str) -> None:
    started = choose(environ)
    assert started.kind == kind and started.reason


def test_torchrun_holds_the_store_and_a_restart_is_another_job() -> None:
    started = choose(TORCHRUN)
    assert (started.rank, started.size, started.address, started.port) == (2, 4, "h1", 29500)
    assert started.is_served and not choose(PLAIN).is_served
    assert choose(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}).job != started.job


@pytest.mark.parametrize("text", ["4", " 4", "4 "])
def test_blanks_around_a_number_are_as_torch_has_them(text: str) -> None:
    started = choose(PLAIN | {"WORLD_SIZE": text, "RANK": " 2 ", "MASTER_PORT": " 29500"})
    assert started == choose(PLAIN)


def test_a_script_of_srun_that_sets_the_size_takes_its_rank_from_srun() -> None:
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    srun = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    assert choose(environ | srun).rank == 1


def test_torch_distributed_knows_what_the_variables_leave_out() -> None:
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    assert choose(environ, group=(1, 2)) == Started("tcp", "torch.distributed is initialised", 1, 2)


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "2"}, {"RANK": "0"}, MPI])
def test_who_brings_a_store_says_which_process_this_is(environ: dict[str, str]) -> None:
    with pytest.raises(CasyncError, match="a store is given .* is not set"):
        choose(environ, has_store=True)


def test_srun_without_mpi_meets_on_the_first_host_of_the_step() -> None:
    environ = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
    environ["SLURM_STEP_NODELIST"] = "n[3-4],m1"
    started = choose(environ)
    assert (started.kind, started.rank, started.size, started.address) == ("tcp", 3, 4, "n3")
    assert started.port != choose(environ | {"SLURM_STEP_ID": "1"}).port
    assert choose(environ | {"MASTER_ADDR": "other", "MASTER_PORT": "7"}).port == 7


def test_an_indexed_job_of_kubernetes() -> None:
    environ = {key: value for key, value in PLAIN.items() if key != "RANK"} | {"JOB_COMPLETION_INDEX": "1"}
    assert choose(environ).rank == 1


def test_the_transport_that_is_asked_for() -> None:
    assert choose(MPI | PLAIN, "tcp") == Started("tcp", "RANK and WORLD_SIZE are set", 2, 4, "h1", 29500)
    assert choose(MPI, "mpi").kind == "mpi"
    with pytest.raises(CasyncError, match="mpirun did not start"):
        choose(PLAIN, "mpi")
    with pytest.raises(CasyncError, match="MASTER_ADDR"):
        choose(MPI, "tcp")
    with pytest.raises(CasyncError, match="auto, mpi, tcp"):
        choose({}, "udp")


def test_processes_of_torch_distributed_are_a_world_of_the_same_ranks() -> None:
    assert choose({}, group=(1, 3)) == Started("tcp", "torch.distributed is initialised", 1, 3)
    assert choose({}, group=(0, 1)).kind == "alone"
    assert choose(MPI, group=(1, 3)).kind == "mpi"


def test_a_store_needs_no_address() -> None:
    started = choose({"RANK": "0", "WORLD_SIZE": "2"}, has_store=True)
    assert (started.kind, started.address) == ("tcp", "")


@pytest.mark.parametrize(("environ", "texts"), [
    ({"WORLD_SIZE": "4", "RANK": "2"}, ("MASTER_ADDR and MASTER_PORT", "CASYNC_SIZE=1")),
    (PLAIN | {"MASTER_PORT": ""}, ("set MASTER_PORT to",)),
    (PLAIN | {"MASTER_PORT": "http"}, ("MASTER_PORT='http'",)),
    (PLAIN | {"RANK": "4"}, ("'4' of 4", "0 to 3")),
    ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, ("casyncrun -np 2",)),
    ({"CASYNC_SIZE": "3"}, ("casyncrun -np 3",)),
    (PLAIN | {"MASTER_PORT": "65536"}, ("MASTER_PORT='65536'", "1 to 65535")),
    (PLAIN | {"MASTER_PORT": "9" * 20}, ("MASTER_PORT='9999",)),
    (PLAIN | {"MASTER_PORT": "9" * 5000}, ("MASTER_PORT='9999",)),
    (PLAIN | {"MASTER_PORT": "²"}, ("MASTER_PORT='²'",)),
    (PLAIN | {"RANK": "²"}, ("'²' of 4", "CASYNC_SIZE=1")),
    (PLAIN | {"RANK": "-1"}, ("'-1' of 4",)),
    *((PLAIN | {"WORLD_SIZE": text}, (f"WORLD_SIZE={text!r}", "whole number", "CASYNC_SIZE=1")) for text in MALFORMED),
    ({key: PLAIN[key] for key in PLAIN if key != "RANK"}, ("WORLD_SIZE='4'", "RANK is not set", "CASYNC_SIZE=1")),
    ({key: PLAIN[key] for key in PLAIN if key != "RANK"} | {"WORLD_SIZE": "two"}, ("WORLD_SIZE='two'",)),
    ({key: PLAIN[key] for key in PLAIN if key != "WORLD_SIZE"}, ("RANK='2'", "WORLD_SIZE is not set")),
    (PLAIN | {"WORLD_SIZE": ""}, ("RANK='2'", "WORLD_SIZE is not set")),
    ({"SLURM_STEP_NUM_TASKS": "two", "SLURM_PROCID": "0"}, ("SLURM_STEP_NUM_TASKS='two'",)),
    ({"CASYNC_SIZE": "two"}, ("CASYNC_SIZE='two'",)),
])  # fmt: skip
def test_processes_that_should_be_one_world_and_are_not(environ: dict[str, str], texts: tuple[str, ...]) -> None:
    with pytest.raises(CasyncError) as caught:
        choose(environ)
    assert all(text in str(caught.value) for text in texts), caught.value
