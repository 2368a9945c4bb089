"""Jobs of one host where there is no mpirun: casyncrun starts the ranks itself."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from casync.launcher.mpirun import Facts, MpiNotFound, compose, gather_facts
from casync.launcher.options import parse

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

FACTS = Facts(
    mpi=None,
    python="/py",
    rank_entry="/casync/rank_entry.py",
    root=True,
    cores=4,
    local_names=frozenset({"localhost", "me"}),
    no_mpi="no mpirun of Open MPI found (/py/mpirun does not exist)",
)
# casyncrun, with every mpirun of this machine out of its sight.
WITHOUT_MPI = """
    import sys
    import casync.launcher.mpirun as mpirun
    def find(environ):
        raise mpirun.MpiNotFound("no mpirun of Open MPI found")
    mpirun.find = find
    from casync.launcher import main
    sys.exit(main(sys.argv[1:]))
"""


def start(casyncrun: Runner, script: str, *args: str) -> subprocess.Popen[str]:
    """A job without mpirun."""
    command = casyncrun.command(script, *args)
    return start_command(casyncrun, *command[command.index("run") + 1 :])


def start_command(casyncrun: Runner, *words: str) -> subprocess.Popen[str]:
    starter = casyncrun.folder / "without_mpi.py"
    starter.write_text(textwrap.dedent(WITHOUT_MPI))
    return casyncrun.start_command([sys.executable, str(starter), *words])


def run(casyncrun: Runner, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    process = start(casyncrun, script, *args)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_the_command_needs_nothing_of_mpi() -> None:
    launch = compose(parse(["-np", "2", "-x", "A=b", "a"]), FACTS, {})
    entry = "/py -I -S /casync/rank_entry.py -- a"
    assert launch.shell() == f"A=b /py -I -S /casync/local_start.py 2 {entry}"
    assert launch.note.endswith("no mpirun: the ranks reach each other without MPI")
    assert not launch.remote


def test_hosts_that_are_this_one_are_no_other_hosts() -> None:
    assert compose(parse(["-H", "localhost:2", "a"]), FACTS, {}).argv[4] == "2"


def test_on_other_hosts_the_error_names_what_to_install_and_torchrun() -> None:
    with pytest.raises(MpiNotFound, match=r"/py/mpirun does not exist.*casync\[mpi\].*torchrun --nnodes 3 "):
        compose(parse(["-H", "me:1,h2:1,h3:1", "a"]), FACTS, {})


def test_an_mpi_that_the_user_named_is_not_passed_over() -> None:
    with pytest.raises(MpiNotFound, match="not an executable"):
        gather_facts({"MPICC": "/no/such/mpicc", "PATH": "/bin"})


def test_mpi_is_used_where_it_is() -> None:
    facts = gather_facts(os.environ)
    if facts.mpi is None:
        pytest.skip(facts.no_mpi)
    assert "local_start" not in compose(parse(["-np", "2", "a"]), facts, {}).shell()
    assert "local_start" in compose(parse(["-np", "2", "a"]), dataclasses.replace(facts, mpi=None), {}).shell()


def test_ranks_reduce_without_libmpi(casyncrun: Runner) -> None:
    script = """
        import numpy, casync.numpy as hvd
        hvd.init()
        total = hvd.allreduce(numpy.full(100_000, hvd.rank() + 1.0, "float32"), op=hvd.Sum)
        assert (total == 6).all()
        print(hvd.local_rank(), hvd.local_size(), "libmpi" in open("/proc/self/maps").read())
    """
    done = run(casyncrun, script, "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: {rank} 3 False" for rank in range(3)]
    assert "no mpirun: the ranks reach each other without MPI" in done.stderr


def test_a_rank_that_dies_is_answered_for(casyncrun: Runner) -> None:
    script = """
        import os, time, numpy, casync.numpy as hvd
        hvd.init()
        if hvd.rank() == 1:
            os._exit(3)
        hvd.allreduce(numpy.ones(10))
    """
    done = run(casyncrun, script, "-np", "3")
    assert done.returncode == 3
    assert "the first rank to fail: rank 1" in done.stderr and "exited with status 3" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left(
    casyncrun: Runner, wait_for: Callable[[subprocess.Popen[str], str, int], None], number: signal.Signals
) -> None:
    process = start(casyncrun, "import time; print('up', flush=True); time.sleep(300)", "-np", "2")
    wait_for(process, "up", 2)
    process.send_signal(number)
    status = process.wait(timeout=30)
    assert status == (128 + signal.SIGINT if number == signal.SIGINT else -signal.SIGKILL)
    assert casyncrun.wait_until_gone() == []


def test_a_command_that_is_not_there_is_named(casyncrun: Runner) -> None:
    process = start_command(casyncrun, "-np", "2", "no-such-program", casyncrun.marker)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 127 and "no-such-program" in err
