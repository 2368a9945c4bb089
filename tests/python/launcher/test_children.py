"""Child processes of a rank that call init(): told at once, and the rank goes on."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from casync.transport import children

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

# Each rank has one child, which does what `child` says, while the ranks reduce.
RANK = """
    import multiprocessing, os, subprocess, sys, time
    def child(how):
        os.environ.update(ENVIRON)
        import numpy, casync.numpy as hvd
        begun = time.monotonic()
        try:
            hvd.init(start_timeout_s=20)
            said = f"child is rank {hvd.rank()} of {hvd.size()}"
            hvd.shutdown()
        except hvd.CasyncError as error:
            said = f"child is told: {error}"
        print(said, "in time" if time.monotonic() - begun < 10 else "late", flush=True)
    if __name__ == "__main__":
        how = sys.argv[2]
        if how == "child":
            child(how)
            sys.exit()
        import numpy, casync.numpy as hvd
        hvd.init(timeout_s=40)
        if AGAIN:
            hvd.shutdown()
        if how == "subprocess":
            process = subprocess.Popen([sys.executable, *sys.argv[:2], "child"])
            ended = lambda: process.poll() is not None
        else:
            process = multiprocessing.get_context(how).Process(target=child, args=(how,))
            process.start()
            ended = lambda: process.exitcode is not None
        if AGAIN:
            while not ended():
                time.sleep(0.01)
            hvd.init(timeout_s=40)
        until = time.monotonic() + 30
        done = False
        while not done:
            total = hvd.allreduce(numpy.full(1000, float(ended())), op=hvd.Sum, name="x")[0]
            done = total == hvd.size() or time.monotonic() > until
            done = bool(hvd.allreduce(numpy.full(1, float(done)), op=hvd.Sum, name="done")[0])
        print("rank is done", ended(), flush=True)
"""


def lines(casyncrun: Runner, how: str, *flags: str, environ: str = "{}", again: bool = False) -> tuple[list[str], str]:
    script = RANK.replace("ENVIRON", environ).replace("AGAIN", str(again))
    command = [*casyncrun.command(script, "-np", "2", *flags), how]
    process = casyncrun.start_command(command)
    out, errors = process.communicate(timeout=90)
    assert process.returncode == 0, out + errors
    return sorted(re.sub(r"^\[\d\]<stdout>: ", "", line) for line in out.splitlines()), out + errors


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-x", "CASYNC_TRANSPORT=tcp")], ids=["mpi", "tcp"])
@pytest.mark.parametrize("how", ["spawn", "forkserver", "subprocess"])
def test_a_child_is_told_and_its_rank_goes_on(casyncrun: Runner, how: str, flags: tuple[str, ...]) -> None:
    found, said = lines(casyncrun, how, *flags)
    told = [line for line in found if line.startswith("child is told: init() was called in a child of a rank: ")]
    assert len(told) == 2 and all(line.endswith(" in time") for line in told), said
    assert found.count("rank is done True") == 2, said


@pytest.mark.slow
def test_so_is_one_of_a_rank_that_has_left_its_session(casyncrun: Runner) -> None:
    """MPI takes a process once."""
    found, said = lines(casyncrun, "spawn", again=True)
    assert sum("child of a rank" in line for line in found) == 2, said
    assert found.count("rank is done True") == 2, said


@pytest.mark.slow
def test_a_child_may_be_a_world_of_its_own(casyncrun: Runner) -> None:
    found, said = lines(casyncrun, "spawn", environ="{'CASYNC_SIZE': '1'}")
    assert found == ["child is rank 0 of 1 in time"] * 2 + ["rank is done True"] * 2, said


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("inner", ["casyncrun", "torchrun"])
def test_a_rank_may_start_a_whole_job(casyncrun: Runner, inner: str) -> None:
    script = """
        import os, subprocess, sys, numpy, casync.numpy as hvd
        hvd.init()
        if len(sys.argv) > 2:
            total = int(hvd.allreduce(numpy.ones(3), op=hvd.Sum)[0])
            os.write(1, f"inner {hvd.rank()} {hvd.size()} {total}\\n".encode())  # both write to one pipe
        else:
            if hvd.rank() == 1:
                starter = ["casync", "run", "-np", "2", sys.executable]
                if INNER == "torchrun":
                    starter = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
                subprocess.run([sys.executable, "-m", *starter, *sys.argv, "inner"], check=True)
            hvd.barrier()
            print("outer", hvd.rank(), hvd.size(), flush=True)
    """
    if inner == "torchrun":
        pytest.importorskip("torch")
    done = casyncrun.run(script.replace("INNER", repr(inner)), "-np", "2", timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("inner 0 2 2", "inner 1 2 2", "outer 0 2", "outer 1 2"):
        assert word in done.stdout, done.stdout + done.stderr


def test_the_mark_is_of_one_process_and_one_place() -> None:
    environ = {children.MARK: ""}
    assert children.who_has(environ, "place") is None
    children.mark(environ, ["place"])
    assert children.who_has(environ, "place") is None  # it is this process
    parent = {children.MARK: environ[children.MARK].replace(f"{os.getpid()} ", "1 ", 1)}
    assert children.who_has(parent, "place") is None  # a number that was used again
    children.erase(parent)
    assert children.MARK in parent
    children.erase(environ)
    assert children.MARK not in environ
