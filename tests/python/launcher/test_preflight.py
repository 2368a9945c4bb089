"""What would end a job is said in one line before it starts. Reaching hosts is tried with the real ssh."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from casync.launcher.options import parse
from casync.launcher.preflight import Target, _try, hidden, missing, script_of, target_of, unreachable, with_python
from support.ports import free_port

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "a.py", "b.py"], "a.py"),
        (["/usr/bin/python3.11", "-u", "-W", "ignore", "-Xdev", "a.py"], "a.py"),
        (["python", "-m", "pytest", "a.py"], None),
        (["python", "-c", "pass", "a.py"], None),
        (["python", "-"], None),
        (["python"], None),
        (["./train", "a.py"], None),
    ],
)
def test_the_script_that_python_would_run(command: list[str], script: str | None) -> None:
    assert script_of(command) == script


def test_missing_files(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    (tmp_path / "tool").touch(mode=0o755)
    python = sys.executable
    assert missing([python, "there.py"], str(tmp_path), None) is None
    assert missing(["./tool"], str(tmp_path), "/bin") is None
    assert missing(["tool"], "/", str(tmp_path)) is None
    assert missing([python, "gone.py", "x"], "/here", None) == (
        2, f"cannot start {python} gone.py x: there is no file gone.py in /here"
    )  # fmt: skip
    assert missing(["./gone"], "/here", "/bin") == (127, "cannot start ./gone: there is no such program in /here")
    assert missing(["gone"], "/here", "/bin") == (127, "cannot start gone: there is no such program on PATH")


def test_a_script_in_a_checkout_would_not_find_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "casync").mkdir()
    (tmp_path / "casync" / "__init__.py").touch()
    (tmp_path / "sub").mkdir()
    folder, python = str(tmp_path), sys.executable
    text = hidden([python, "train.py"], folder, {})
    assert text is not None and f"{folder}/casync beside train.py" in text and "Move train.py" in text
    assert hidden([python, "sub/train.py"], folder, {}) is None
    assert hidden([python, "-P", "train.py"], folder, {}) is None
    assert hidden([python, "train.py"], folder, {"PYTHONSAFEPATH": "1"}) is None
    assert hidden(["train"], folder, {}) is None
    (tmp_path / "casync" / "_core.cpython-311.so").touch()
    assert hidden([python, "train.py"], folder, {}) is None


def test_a_script_that_is_no_program_runs_with_this_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "own.py").touch(mode=0o755)
    folder, python = str(tmp_path), sys.executable
    assert with_python(["train.py", "--lr", "1"], folder, "/bin") == (python, "train.py", "--lr", "1")
    assert with_python(["./train.py"], folder, "/bin") == (python, "./train.py")
    assert with_python([f"{folder}/train.py"], "/", "/bin") == (python, f"{folder}/train.py")
    assert with_python(["gone.py"], folder, "/bin") == (python, "gone.py")  # `missing` says that it is not there
    for program in (["own.py"], ["./own.py"], [f"{folder}/own.py"], ["sh", "train.py"], ["train"]):
        assert with_python(program, folder, folder) == tuple(program)


def test_what_ssh_makes_of_a_name() -> None:
    assert target_of("h", "hostname 10.0.0.1\nport 2222\nproxyjump none\n") == Target("10.0.0.1", 2222)
    assert target_of("h", "port 22\nproxyjump gate\n") == Target("h", 22, proxy=True)


def test_no_answer_names_host_and_port() -> None:
    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError

    fake_ssh = ["sh", "-c", "echo hostname 10.0.0.9; echo port 2222", "ssh"]
    assert _try("h9", fake_ssh, connect) == "host h9, port 2222 of 10.0.0.9: no answer within 5 s"


@pytest.fixture
def closed_port() -> int:
    return free_port()


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A port that accepts connections and closes them, as no sshd does."""
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()[0].close()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.kill()


@needs_ssh
def test_hosts_that_ssh_does_not_reach_are_named_together(closed_port: int) -> None:
    options = parse(["-H", "127.0.0.1:2", "-p", str(closed_port), "a"])
    text = unreachable(["127.0.0.1", "no-such-host.invalid"], options, {"PATH": "/bin:/usr/bin"})
    assert text is not None
    assert text.startswith(
        f"could not connect to some hosts via ssh: host 127.0.0.1, port {closed_port}: Connection refused; --ssh-port"
    )
    assert f"; host no-such-host.invalid, port {closed_port}: " in text and "is the name right?" in text


@needs_ssh
def test_a_port_that_does_not_speak_ssh(mute_port: int) -> None:
    options = parse(["-H", "127.0.0.1:2", "-p", str(mute_port), "a"])
    text = unreachable(["127.0.0.1"], options, {"PATH": "/bin:/usr/bin"})
    assert text is not None and f"host 127.0.0.1, port {mute_port}: " in text
    assert f"`ssh -p {mute_port} 127.0.0.1 true` must work without a password" in text


def test_no_ssh_at_all() -> None:
    text = unreachable(["h1"], parse(["-H", "h1:2", "a"]), {"PATH": "/no/such"})
    assert text == "there is no ssh on PATH to reach h1; install it or name another with --rsh-agent"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (["-np", "2", "-H", "localhost:1", "true"], 2, "-np 2 is more than the 1 slots of the hosts (localhost:1)"),
        (["-np", "2", "python", "gone.py"], 2, "there is no file gone.py in "),
        (["-np", "2", "gone.py", "1"], 2, "there is no file gone.py in "),
        (["-np", "2", "gone"], 127, "cannot start gone: there is no such program on PATH"),
        pytest.param(
            ["-H", "no-such-host.invalid:2", "true"], 1, "host no-such-host.invalid, port 22: ", marks=needs_ssh
        ),
        pytest.param(
            ["-H", "127.0.0.2:2", "-p", "1", "true"], 1, "host 127.0.0.2, port 1: Connection", marks=needs_ssh
        ),
    ],
)
def test_casyncrun_says_it_in_one_line_and_leaves(casyncrun: Runner, line: list[str], status: int, said: str) -> None:
    began = time.monotonic()
    process = casyncrun.start_command([sys.executable, "-m", "casync.launcher", *line])
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    first = err.splitlines()[0]
    assert first.startswith("casyncrun: ") and said in first
    assert len(err.splitlines()) == (2 if "slots" in said else 1) and out == ""
    assert time.monotonic() - began < 20  # a few seconds, on a machine that does nothing else
