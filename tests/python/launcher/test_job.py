"""Real jobs under mpirun: how they end, what they print, and that nobody is left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from casync.launcher.mpirun import find

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

WaitFor = Callable[["subprocess.Popen[str]", str, int], None]

SLEEP = """
    import subprocess, sys, time
    subprocess.Popen(["sh", "-c", "sleep 300; true", sys.argv[1]])  # a child of the rank's own must go too
    print("up", flush=True)
    time.sleep(300)
"""
# MPI by ctypes: the tests of the launcher need neither mpi4py nor the core.
MPI = """
    import ctypes, os, signal, sys, time
    mpi = ctypes.CDLL(LIBRARY, ctypes.RTLD_GLOBAL)
    world = ctypes.c_void_p.in_dll(mpi, "ompi_mpi_comm_world")
    world = ctypes.addressof(world)
    def init():
        mpi.MPI_Init(None, None)
        mpi.MPI_Comm_set_errhandler(
            ctypes.c_void_p(world),
            ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_errors_return"))),
        )
    def barrier():
        return mpi.MPI_Barrier(ctypes.c_void_p(world))
    rank = int(os.environ["CASYNC_RANK"])
"""


def mpi_script(body: str) -> str:
    """A script with the MPI functions above before it."""
    library = os.path.join(os.path.dirname(os.path.dirname(find(os.environ).mpirun)), "lib", "libmpi.so.40")
    return textwrap.dedent(MPI).replace("LIBRARY", repr(library)) + textwrap.dedent(body)


def test_a_job_of_one_goes_through_mpirun_too(casyncrun: Runner) -> None:
    done = casyncrun.run("import os; print(os.environ['OMPI_COMM_WORLD_SIZE'])", "-np", "1")
    assert (done.returncode, done.stdout) == (0, "[0]<stdout>: 1\n")


def test_every_rank_knows_its_place(casyncrun: Runner) -> None:
    script = """
        import os
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        for prefix in ("CASYNC", "HOROVOD"):
            print(prefix, *(os.environ[f"{prefix}_{name}"] for name in names))
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], "CASYNC_LAUNCHER" in os.environ)
    """
    done = casyncrun.run(script, "-np", "3")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]<stdout>: ")]
        assert lines == [f"CASYNC {rank} 3 {rank} 3 0 1", f"HOROVOD {rank} 3 {rank} 3 0 1", f"{rank} 3 127.0.0.1 False"]


def test_what_was_decided_about_root_and_cores_is_said_in_one_line(casyncrun: Runner) -> None:
    done = casyncrun.run("pass", "-np", "2")
    assert re.fullmatch(r"casyncrun: .*2 ranks on the \d+ cores? of this host: .*\n", done.stderr)
    assert ("--allow-run-as-root" in done.stderr) == (os.geteuid() == 0)


def test_stdout_and_stderr_are_kept_apart_in_whole_lines(casyncrun: Runner) -> None:
    script = """
        import sys
        for i in range(2000):
            print("o" * 70, i)
            print("e" * 70, i, file=sys.stderr)
    """
    done = casyncrun.run(script, "-np", "3")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[{rank}]<stdout>: {'o' * 70} {i}" for rank in range(3) for i in range(2000)
    )
    assert sum(bool(re.fullmatch(r"\[[0-2]\]<stderr>: e{70} \d+", line)) for line in done.stderr.splitlines()) == 6000


def test_variables_reach_the_ranks(casyncrun: Runner) -> None:
    done = casyncrun.run("import os; print(os.environ['A'])", "-np", "2", "-x", "A=x;y, z\"q$ 'r")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: x;y, z\"q$ 'r" for rank in range(2)]


def test_stdin_is_empty_and_does_not_hang(casyncrun: Runner) -> None:
    done = casyncrun.run("import sys; print(repr(sys.stdin.read()))", "-np", "2")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: ''", "[1]<stdout>: ''"]


def test_the_first_exit_status_is_casyncruns_own(casyncrun: Runner) -> None:
    script = """
        import os, sys, time
        if os.environ["CASYNC_RANK"] == "1":
            sys.exit(3)
        time.sleep(1)
    """
    done = casyncrun.run(script, "-np", "3")
    assert done.returncode == 3
    assert re.search(
        r"first rank to fail: rank 1 on host \S+ exited with status 3; then ranks 0, 2 exited with", done.stderr
    )


def test_a_command_that_goes_away_before_it_starts_is_127(casyncrun: Runner, tmp_path: Path) -> None:
    command = tmp_path / "command"
    command.write_text("#!/no/such/interpreter\n")
    command.chmod(0o755)
    process = casyncrun.start_command(
        [sys.executable, "-m", "casync", "run", "-np", "2", str(command), casyncrun.marker]
    )
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 127
    assert f"[0]<stderr>: casyncrun: cannot start {command}: No such file or directory" in errors


def test_output_goes_to_files_too_and_may_carry_the_time(casyncrun: Runner, tmp_path: Path) -> None:
    script = """
        import os, sys
        print("out", os.environ["CASYNC_RANK"])
        print("err", os.environ["CASYNC_RANK"], file=sys.stderr, end="")
    """
    done = casyncrun.run(script, "-np", "11", "--output-filename", "logs/run", "-prefix-timestamp", timeout=120)
    assert done.returncode == 0, done.stderr
    for rank in range(11):
        folder = tmp_path / "logs" / "run" / f"rank.{rank:02}"
        assert (folder / "stdout").read_text() == f"out {rank}\n"
        assert (folder / "stderr").read_text() == f"err {rank}"
        assert re.search(rf"^\w{{3}} \w{{3}} \d\d [\d:]{{8}} \d{{4}}\[{rank}\]<stdout>: out {rank}$", done.stdout, re.M)


def test_a_folder_that_cannot_be_written_is_said_before_the_start(casyncrun: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = casyncrun.run("pass", "-np", "2", "--output-filename", "file/logs")
    assert done.returncode == 1
    assert "--output-filename file/logs: " in done.stderr and "Not a directory" in done.stderr


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_mpi_peers_learn_of_a_dead_rank_and_leave_by_themselves(casyncrun: Runner, death: str) -> None:
    if not find(os.environ).fault_tolerant:
        pytest.skip("this Open MPI was built without ULFM")
    script = mpi_script(f"""
        init()
        if rank == 1:
            {death}
        began = time.monotonic()
        while barrier() == 0:
            pass
        print("noticed", time.monotonic() - began < 5, flush=True)
        os._exit(0)
    """)
    began = time.monotonic()
    done = casyncrun.run(script, "-np", "4")
    assert done.stdout.count("noticed True") == 3, done.stdout + done.stderr
    assert done.returncode == (137 if "SIGKILL" in death else 3)
    assert time.monotonic() - began < 10


def test_a_death_before_init_ends_the_ranks_that_wait_in_init(casyncrun: Runner) -> None:
    script = mpi_script("""
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        init()
        barrier()
    """)
    began = time.monotonic()
    done = casyncrun.run(script, "-np", "3")
    assert time.monotonic() - began < 10
    assert done.returncode == 128 + signal.SIGSEGV
    for rank in (0, 1):
        assert re.search(
            rf"\[{rank}\]<stderr>: casyncrun: ending this rank: rank 2 on host \S+ was killed by SIGSEGV", done.stderr
        )


def test_ranks_that_stay_after_a_failure_are_ended_after_the_grace(casyncrun: Runner) -> None:
    script = """
        import os, signal, time
        from casync.rendezvous import launcher_pipe as report
        report.initialized()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.5 if os.environ["CASYNC_RANK"] == "0" else 300)
        raise SystemExit(9)
    """
    began = time.monotonic()
    done = casyncrun.run(script, "-np", "3", "--grace", "1.5")
    assert done.returncode == 9
    assert 1.5 < time.monotonic() - began < 10
    assert re.search(
        r"\[2\]<stderr>: casyncrun: ending this rank: rank 0 on .*; it did not leave within 1.5 s after that",
        done.stderr,
    )


def test_without_ulfm_survivors_still_leave_by_themselves(casyncrun: Runner, tmp_path: Path) -> None:
    starter = tmp_path / "starter.py"
    starter.write_text(
        textwrap.dedent("""
        import dataclasses, os, sys
        from casync.launcher.job import Job
        from casync.launcher.mpirun import compose, gather_facts
        from casync.launcher.options import parse
        from casync.launcher.rank.wire import LAUNCHER, TOKEN
        facts = gather_facts(os.environ)
        facts = dataclasses.replace(facts, mpi=dataclasses.replace(facts.mpi, fault_tolerant=False))
        options = parse(sys.argv[1:])
        sys.exit(Job(options, compose(options, facts, os.environ, (LAUNCHER, TOKEN)), os.environ).run())
        """)
    )
    body = "r=$CASYNC_RANK; test $r = 1 && kill -9 $$; sleep 0.5; echo left $r; exit 4"
    process = casyncrun.start_command([sys.executable, str(starter), "-np", "3", "sh", "-c", body, casyncrun.marker])
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 137
    assert sorted(out.splitlines()) == ["[0]<stdout>: left 0", "[2]<stdout>: left 2"], errors


def test_ctrl_c_in_a_terminal_reaches_the_ranks_once(casyncrun: Runner) -> None:
    script = """
        import time
        try:
            print("up", flush=True)
            time.sleep(300)
        except KeyboardInterrupt:
            time.sleep(0.7)  # a second interrupt would end this
            print("cleaned up", flush=True)
    """
    command = casyncrun.command(script, "-np", "2")
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a shell does; what started the tests may ignore it
            os.chdir(casyncrun.folder)  # `python -m` would import a checkout's casync, which has no compiled modules
            os.execvpe(command[0], command, casyncrun.environment())
        finally:
            os._exit(1)
    shown = b""
    interrupted = False
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the terminal's last process has gone
            break
        if not interrupted and shown.count(b": up") == 2:
            os.write(terminal, b"\x03")
            interrupted = True
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # as one process that handles its interrupt
    assert shown.count(b"cleaned up") == 2


def test_a_rank_may_say_why_it_fails(casyncrun: Runner) -> None:
    script = """
        import os, sys, time
        from casync.rendezvous import launcher_pipe as report
        if os.environ["CASYNC_RANK"] == "1":
            report.failing("ValueError: bad label")
            time.sleep(0.8)
            sys.exit(1)
        time.sleep(0.4)
        sys.exit(5)
    """
    done = casyncrun.run(script, "-np", "2")
    assert re.search(
        r"first rank to fail: rank 1 on host \S+ exited with status 1 \(ValueError: bad label\)", done.stderr
    )
    assert done.returncode == 1


def test_a_rank_that_gives_up_may_name_the_one_that_does_not_answer(casyncrun: Runner) -> None:
    script = """
        import os, sys, time
        from casync.rendezvous import launcher_pipe as report
        if os.environ["CASYNC_RANK"] == "0":
            report.unreachable(1, "no sign of life")
            sys.exit(1)
        time.sleep(300)
    """
    done = casyncrun.run(script, "-np", "2", "--grace", "0.5")
    assert re.search(
        r"first rank to fail: rank 1 on host \S+ does not answer \(no sign of life\); then rank 0", done.stderr
    )
    assert done.returncode == 1


def test_a_stopped_rank_is_named_when_its_peers_give_up(casyncrun: Runner) -> None:
    script = """
        import os, signal, sys, time
        if os.environ["CASYNC_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)
        sys.exit(1)
    """
    done = casyncrun.run(script, "-np", "2", "--grace", "1")
    assert re.search(r"first rank to fail: rank 1 on host \S+ is stopped by SIGSTOP; then rank 0 exited", done.stderr)
    assert done.returncode == 1


@pytest.mark.interplay("Ctrl-C", "all", "supported", "it ends a wait at once, and by way of casyncrun all ranks")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_ranks_and_what_they_started(
    casyncrun: Runner, wait_for: WaitFor, number: signal.Signals
) -> None:
    process = casyncrun.start(SLEEP, "-np", "3")
    wait_for(process, "up", 3)
    process.send_signal(number)
    assert process.wait(timeout=10) == 128 + number
    assert casyncrun.wait_until_gone() == []


def test_ranks_that_ignore_ctrl_c_are_killed(casyncrun: Runner, wait_for: WaitFor) -> None:
    script = """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(300)
    """
    process = casyncrun.start(script, "-np", "2")
    wait_for(process, "up", 2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.8)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=4) == 130
    assert casyncrun.wait_until_gone() == []


@pytest.mark.parametrize("victim", ["casyncrun", "mpirun", "a wrapper"])
def test_nobody_outlives_a_kill_9_of(casyncrun: Runner, wait_for: WaitFor, victim: str) -> None:
    process = casyncrun.start(SLEEP, "-np", "8", "--grace", "1")  # so many wrappers notice, and mpirun hears it once
    wait_for(process, "up", 8)
    mpirun = next(line.split()[0] for line in casyncrun.left() if "--map-by" in line)
    if victim == "casyncrun":
        process.kill()
    else:
        wanted = "-- " if victim == "a wrapper" else "--map-by"
        lines = [line for line in casyncrun.left() if "launcher/rank" in line]
        pids = [
            int(line.split()[0]) for line in lines if wanted in line and ("--map-by" in line) == (wanted == "--map-by")
        ]
        os.kill(pids[0], signal.SIGKILL)
    status = process.wait(timeout=12)
    assert status == -9 if victim == "casyncrun" else status > 0
    assert casyncrun.wait_until_gone() == []
    assert not (Path(tempfile.gettempdir()) / f"ompi.{mpirun}").exists()


def test_a_reader_that_goes_away_ends_the_job(casyncrun: Runner) -> None:
    process = casyncrun.start("while True: print('y')", "-np", "2")
    assert process.stdout is not None
    assert "y" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=12) == 128 + signal.SIGPIPE


def test_an_mpirun_that_cannot_start_is_reported_with_its_own_words(casyncrun: Runner) -> None:
    done = casyncrun.run("pass", "-np", "2", "-H", "h1:2", "--rsh-agent", "/bin/false")
    assert done.returncode != 0
    assert "mpirun failed with exit code" in done.stderr
    assert "daemon" in done.stdout + done.stderr


def test_an_idle_job_costs_no_cpu(casyncrun: Runner, wait_for: WaitFor) -> None:
    process = casyncrun.start(SLEEP, "-np", "4")
    wait_for(process, "up", 4)
    time.sleep(0.5)

    def ticks() -> int:
        spent = 0
        for line in casyncrun.left():
            fields = open(f"/proc/{line.split()[0]}/stat").read().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
        return spent

    before = ticks()
    time.sleep(3)
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") / 3 < 0.05
    process.terminate()
    process.wait(timeout=10)


def test_an_exception_whose_text_is_no_text_reaches_the_other_ranks(casyncrun: Runner) -> None:
    script = """
        import numpy as np
        import casync.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("bad \\ud800")
        hvd.allreduce(np.ones(2), name="a")
    """
    done = casyncrun.run(script, "-np", "2")
    assert r"AbortedError: rank 1: ValueError: bad \ud800 at " in done.stderr
    assert re.search(r"casyncrun: the first rank to fail: rank 1 .*ValueError: bad \\ud800", done.stderr), done.stderr
