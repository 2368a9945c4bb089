"""Finds what would end a job before it starts, before anything is started, and says it in one line each.

`with_python` puts the interpreter before a script. `missing` and `hidden` look at the command, `unreachable` at the
hosts: it asks ssh what it makes of each name, connects to that port, and logs in, for all hosts at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from casync.launcher.options import Options

__all__ = [
    "SSH_LOGIN",
    "Target",
    "hidden",
    "missing",
    "script_of",
    "ssh_command",
    "target_of",
    "unreachable",
    "with_python",
]

_SECONDS = 5
SSH_LOGIN = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SECONDS}", "-o", "StrictHostKeyChecking=accept-new")
"""ssh's options where nobody can type a password."""
_HOSTS_AT_ONCE = 32
# Options of python that take the next word; -c and -m end the search, since no file is run.
_PYTHON_TAKES = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class Target:
    """Where ssh would connect for one host; `proxy` where that is not for us to try."""

    address: str
    port: int
    proxy: bool = False


def with_python(command: Sequence[str], folder: str, path: str | None) -> tuple[str, ...]:
    """The command, behind this Python where its first word is a script `x.py` and no program.

    `folder` is the working folder and `path` is PATH. A file `x.py` that may be executed and is named by its path, or
    found on PATH, is a program. A script that does not exist is still meant for Python: `missing` says that it is not
    there.
    """
    if not command[0].endswith(".py") or _program(command[0], folder, path) is not None:
        return tuple(command)
    return (sys.executable, *command)


def script_of(command: Sequence[str]) -> str | None:
    """The file that a Python of the command line runs, if it runs one."""
    if not Path(command[0]).name.startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if word in _PYTHON_TAKES:
            next(words, None)
        elif word == "-" or word.startswith(("-c", "-m")):
            return None
        elif not word.startswith("-"):
            return word
    return None


def missing(command: Sequence[str], folder: str, path: str | None) -> tuple[int, str] | None:
    """A command or script that is not there, as (status, text). The status is the one a shell or Python would give."""
    if _program(command[0], folder, path) is None:
        where = f"in {folder}" if "/" in command[0] else "on PATH"
        return 127, f"cannot start {command[0]}: there is no such program {where}"
    script = script_of(command)
    if script is not None and not os.path.exists(os.path.join(folder, script)):
        return 2, f"cannot start {shlex.join(command)}: there is no file {script} in {folder}"
    return None


def hidden(command: Sequence[str], folder: str, environ: Mapping[str, str]) -> str | None:
    """Why the script would not find the installed casync, None where it would.

    Python looks in the script's own folder first, and in a checkout that holds casync/ without its compiled modules.
    """
    script = script_of(command)
    if script is None or environ.get("PYTHONSAFEPATH") or not {"-I", "-P"}.isdisjoint(command):
        return None
    package = Path(folder, script).resolve().parent / "casync"
    if not (package / "__init__.py").exists() or list(package.glob("_core.*.so")):
        return None
    return (
        f"cannot start {shlex.join(command)}: the folder {package} beside {script} is CaSync's source without its "
        f"compiled modules, and hides the installed package from {script}. Move {script} to another folder"
    )


def _program(word: str, folder: str, path: str | None) -> str | None:
    return shutil.which(os.path.join(folder, word) if "/" in word else word, path=path)


def ssh_command(options: Options) -> list[str]:
    """ssh with the user's port and key."""
    port = ["-p", str(options.ssh_port)] if options.ssh_port is not None else []
    key = ["-i", options.ssh_identity_file] if options.ssh_identity_file is not None else []
    return ["ssh", *port, *key]


def target_of(host: str, settings: str) -> Target:
    """Make the target of what `ssh -G host` printed, which includes the user's own ssh configuration."""
    found = dict(line.partition(" ")[::2] for line in settings.splitlines())
    proxy = any(found.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))
    return Target(found.get("hostname", host.rpartition("@")[2]), int(found.get("port", 22)), proxy)


def unreachable(hosts: Sequence[str], options: Options, environ: Mapping[str, str]) -> str | None:
    """The hosts that ssh does not reach, and why, in one line; None when it reaches all."""
    if shutil.which("ssh", path=environ.get("PATH")) is None:
        return f"there is no ssh on PATH to reach {', '.join(hosts)}; install it or name another with --rsh-agent"
    with ThreadPoolExecutor(min(len(hosts), _HOSTS_AT_ONCE)) as pool:
        found = [text for text in pool.map(lambda host: _try(host, ssh_command(options)), hosts) if text]
    return f"could not connect to some hosts via ssh: {'; '.join(found)}" if found else None


def _try(host: str, ssh: Sequence[str], connect: Callable[..., socket.socket] = socket.create_connection) -> str | None:
    asked = _run([*ssh, "-G", host])
    if asked.returncode:
        return f"host {host}: {_last_line(asked)}"
    target = target_of(host, asked.stdout)
    where = f"host {host}, port {target.port}"
    if target.address != host:
        where += f" of {target.address}"
    if not target.proxy:
        try:
            connect((target.address, target.port), timeout=_SECONDS).close()
        except socket.gaierror as error:
            return f"{where}: {error.strerror}; is the name right?"
        except TimeoutError:
            return f"{where}: no answer within {_SECONDS} s"
        except OSError as error:
            return f"{where}: {error.strerror}; --ssh-port names another port"
    tried = _run([*ssh, *SSH_LOGIN, host, "true"])
    if tried.returncode:
        command = shlex.join([*ssh, host, "true"])
        return f"{where}: {_last_line(tried)}; `{command}` must work without a password"
    return None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3 * _SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 255, "", f"ssh does not end within {3 * _SECONDS} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1].rstrip("\r.") if lines else f"ssh ended with status {done.returncode}"
