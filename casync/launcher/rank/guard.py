"""Sees that nothing is left: a command ends with its wrapper, its children with it, mpirun's folder with mpirun."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["before_exec", "die_with_parent", "no_core_dump", "remove_session", "start_guard"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Have the kernel send this process signal `number` when its parent has died."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def remove_session(daemon: int) -> None:
    """Remove the session folder of an mpirun or prted that was killed; several may try."""
    import shutil
    import tempfile

    for name in ("ompi", "prted"):
        shutil.rmtree(f"{tempfile.gettempdir()}/{name}.{daemon}", ignore_errors=True)


def no_core_dump() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start_guard() -> int:
    """Start the process that leads the command's process group, and return its id.

    The command dies with the wrapper by PDEATHSIG, but what the command started does not. The guard does nothing but
    wait for the wrapper's end of a pipe to close, whatever the wrapper died of, and then kills its group.
    """
    watched, held = os.pipe()
    pid = os.fork()
    if pid:
        os.close(watched)
        os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # passed to the group, meant for the command
        os.closerange(0, watched)
        os.closerange(watched + 1, 1024)  # the wrapper has a dozen; an open one would keep its connection alive
        os.read(watched, 1)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


def before_exec(group: int, wrapper: int) -> None:
    """In the child: the guard's process group, and death with the wrapper."""
    os.setpgid(0, group)
    die_with_parent(signal.SIGKILL)
    if os.getppid() != wrapper:
        os._exit(1)
