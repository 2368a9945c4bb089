"""Inside a Slurm allocation.

There is no Slurm where these tests run. The environment is data, and where a real srun would be called, a script stands
in for it that starts the ranks on this machine with the variables that srun sets.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from casync.launcher.hosts import Host
from casync.launcher.mpirun import Facts, MpiInstall, MpiNotFound, compose
from casync.launcher.options import UsageError, parse
from casync.launcher.slurm import Srun, allocation, find_srun, is_better_than_mpirun
from casync.rendezvous.slurm_hosts import HostError, expand_hosts

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
HOSTS = (Host("n1", 2), Host("n2", 2))
FACTS = Facts(
    mpi=MpiInstall("/mpi/bin/mpirun", (5, 0, 11), False, "test", knows_slurm=True),
    python="/py",
    launcher="/l",
    root=False,
    cores=4,
    local_names=frozenset({"localhost", "n1"}),
    allocation=HOSTS,
    srun=Srun("/bin/srun", pmix=True),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,gpu", ["n1", "gpu"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,20],x", ["n08", "n09", "n10", "n11", "n20", "x"]),
        ("r[1-2]n[0-1].site", ["r1n0.site", "r1n1.site", "r2n0.site", "r2n1.site"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({}, ()),
        ({"SLURM_JOB_ID": "7"}, ()),
        ({"SLURM_JOB_NODELIST": "n1"}, ()),
        (JOB, HOSTS),
        ({**JOB, "SLURM_TASKS_PER_NODE": "3,1"}, (Host("n1", 3), Host("n2", 1))),
        ({"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n[1-2]"}, (Host("n1", 1), Host("n2", 1))),
    ],
)
def test_the_allocation(environ: dict[str, str], hosts: tuple[Host, ...]) -> None:
    assert allocation(environ) == hosts


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-b]"}, "'1-b' is not a number or a range"),
        ({"SLURM_TASKS_PER_NODE": "2x2"}, "'2x2' is not COUNT"),
        ({"SLURM_TASKS_PER_NODE": "2"}, "names 2 hosts .* counts for 1"),
    ],
)
def test_an_allocation_that_cannot_be_read_says_what(environ: dict[str, str], said: str) -> None:
    with pytest.raises(HostError, match=said):
        allocation(JOB | environ)


def test_the_number_of_ranks_comes_from_the_allocation() -> None:
    assert parse(["a"], HOSTS).num_proc == 4
    assert parse(["-np", "3", "a"], HOSTS).num_proc == 3
    assert parse(["-H", "n1:1", "a"], HOSTS).num_proc == 1
    with pytest.raises(
        UsageError, match="-np 5 is more than the 4 slots of the hosts .n1:2, n2:2.; ask Slurm for more"
    ):
        parse(["-np", "5", "a"], HOSTS)


@pytest.mark.parametrize(
    ("srun", "mpirun", "knows_slurm", "other_hosts", "better"),
    [
        (Srun("s", True), True, True, True, False),  # mpirun tells survivors of a dead rank
        (Srun("s", True), True, False, True, True),
        (Srun("s", True), True, False, False, False),
        (Srun("s", True), False, False, False, True),
        (Srun("s", False), True, False, True, False),  # ranks could not find each other
        (Srun("s", False), False, False, True, False),
        (None, True, False, True, False),
    ],
)
def test_what_starts_the_ranks(
    srun: Srun | None, mpirun: bool, knows_slurm: bool, other_hosts: bool, better: bool
) -> None:
    assert is_better_than_mpirun(srun, mpirun, knows_slurm, other_hosts) is better


def test_an_mpirun_that_knows_slurm_asks_it_for_the_hosts() -> None:
    launch = compose(parse(["a"], HOSTS), FACTS, JOB | {"PATH": "/bin"})
    assert launch.argv[:7] == ("/mpi/bin/mpirun", "-n", "4", "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")
    assert launch.remote and launch.by_ssh == ()
    assert launch.environ["PATH"] == f"/mpi/bin{os.pathsep}/bin"  # srun starts the daemons by their name
    assert launch.note.startswith("2 ranks on the 4 cores of this host")
    assert "Slurm gave 2 hosts for 4 tasks" in launch.note


def test_an_mpirun_without_slurm_is_told_the_hosts_and_goes_by_ssh() -> None:
    facts = dataclasses.replace(FACTS, mpi=MpiInstall("/mpirun", (5, 0, 11), False, "test"), srun=None)
    launch = compose(parse(["a"], HOSTS), facts, JOB)
    assert launch.shell().startswith("CASYNC_TRANSPORT=tcp /mpirun -n 4 -H n1:2,n2:2 --map-by slot ")
    assert launch.by_ssh == ("n2",)


def test_srun_gets_open_mpis_settings_by_the_environment() -> None:
    facts = dataclasses.replace(FACTS, mpi=None)
    line = ["-np", "3", "-x", "A=b c", "--nics", "eth0", "--no-stall-check", "a"]
    launch = compose(parse(line, HOSTS), facts, JOB)
    assert (launch.starter, launch.remote, launch.fault_tolerant) == ("srun", True, False)
    assert launch.argv == (
        *"/bin/srun --mpi=pmix --nodes=2 --ntasks=3 --distribution=block --overlap --export=ALL".split(),
        *"--cpu-bind=none --kill-on-bad-exit=0 --wait=0 /py -I -S /l/rank/__main__.py -- a".split(),
    )
    wanted = {"A": "b c", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl_tcp_if_include": "eth0"}
    assert wanted.items() <= launch.environ.items()
    assert "CASYNC_STALL_WARNING_SECONDS" in launch.environ
    assert "coll" not in " ".join(launch.environ)  # that setting is for ULFM
    assert "--nodes=1" in compose(parse(["-np", "2", "a"], HOSTS), facts, JOB).argv


def test_hosts_named_by_the_user_need_mpirun() -> None:
    assert compose(parse(["-H", "n1:2", "a"], HOSTS), FACTS, JOB).starter == "mpirun"
    with pytest.raises(MpiNotFound, match="leave out -H"):
        compose(parse(["-H", "n1:1,n2:1", "a"], HOSTS), dataclasses.replace(FACTS, mpi=None), JOB)
    assert "starter.py" in compose(parse(["-H", "n1:2", "a"]), dataclasses.replace(FACTS, mpi=None), JOB).shell()


FAKE_SRUN = """
    #!{python}
    import os, subprocess, sys
    if sys.argv[1:] == ["--mpi=list"]:
        sys.exit("MPI plugin types are...\\n\\tnone\\n\\tpmix")
    settings = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
    command = sys.argv[sys.argv.index("--wait=0") + 1:]
    ranks = []
    for rank in range(int(settings["ntasks"])):
        place = dict.fromkeys(("SLURM_PROCID", "PMIX_RANK", "SLURM_LOCALID"), str(rank))
        place["SLURM_STEP_NUM_TASKS"] = settings["ntasks"]
        ranks.append(subprocess.Popen(command, env=os.environ | place))
    sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


@pytest.fixture
def fake_srun(tmp_path: Path) -> Path:
    folder = tmp_path / "slurm"
    folder.mkdir()
    srun = folder / "srun"
    srun.write_text(textwrap.dedent(FAKE_SRUN).strip().format(python=sys.executable))
    srun.chmod(0o755)
    return srun


def test_srun_is_asked_whether_it_has_pmix(fake_srun: Path) -> None:
    assert find_srun({"PATH": str(fake_srun.parent)}) == Srun(str(fake_srun), True)
    fake_srun.write_text("#!/bin/sh\necho none\n")
    assert find_srun({"PATH": str(fake_srun.parent)}) == Srun(str(fake_srun), False)
    assert find_srun({"PATH": "/no/such/folder"}) is None


def by_srun(casyncrun: Runner, srun: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A job of two ranks that the stand-in for srun starts."""
    starter = casyncrun.folder / "starter.py"
    starter.write_text(
        textwrap.dedent("""
        import dataclasses, os, sys
        from casync.launcher.hosts import Host
        from casync.launcher.job import Job
        from casync.launcher.mpirun import compose, gather_facts
        from casync.launcher.options import parse
        from casync.launcher.slurm import Srun
        hosts = (Host("localhost", 2),)
        facts = dataclasses.replace(gather_facts(os.environ), mpi=None, allocation=hosts, srun=Srun(sys.argv[1], True))
        options = parse(["--grace", "2", *sys.argv[2:]], hosts)
        sys.exit(Job(options, compose(options, facts, os.environ), os.environ).run())
        """)
    )
    process = casyncrun.start_command([sys.executable, str(starter), str(srun), *command, casyncrun.marker])
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_ranks_that_srun_started_know_their_place(casyncrun: Runner, fake_srun: Path) -> None:
    names = (
        "$CASYNC_RANK $HOROVOD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $CASYNC_CROSS_SIZE $WORLD_SIZE ${MASTER_PORT:+port}"
    )
    done = by_srun(casyncrun, fake_srun, "sh", "-c", f"echo {names}")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: 0 2 0 2 1 2 port", "[1]<stdout>: 1 2 1 2 1 2 port"], (
        done.stderr
    )
    assert done.returncode == 0


def test_a_rank_that_dies_under_srun_is_answered_for(casyncrun: Runner, fake_srun: Path) -> None:
    done = by_srun(casyncrun, fake_srun, "sh", "-c", "test $CASYNC_RANK = 1 && exit 3; sleep 60")
    assert done.returncode == 3
    assert "first rank to fail: rank 1 on host" in done.stderr


def test_a_real_mpirun_in_an_allocation_of_this_host(casyncrun: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_TASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    for name, value in (job | dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), socket.gethostname())).items():
        monkeypatch.setenv(name, value)
    done = casyncrun.run("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: 0 2", "[1]<stdout>: 1 2"], done.stderr
    assert "Slurm gave 1 host for 2 tasks" in done.stderr
