"""A command line of casyncrun is data."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.launcher.hosts import Host
from casync.launcher.options import Options, UsageError, parse


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            ["-np", "4", "python", "train.py", "--lr", "3"],
            Options(command=("python", "train.py", "--lr", "3"), num_proc=4),
        ),
        (["--num-proc", "1", "--", "-odd"], Options(command=("-odd",), num_proc=1)),
        (
            ["-H", "h1:2,h2:2", "-np", "3", "./a"],
            Options(command=("./a",), num_proc=3, hosts=(Host("h1", 2), Host("h2", 2))),
        ),
        (["-H", "h1:2,h2", "a"], Options(command=("a",), num_proc=3, hosts=(Host("h1", 2), Host("h2", 1)))),
        (["-np", "2", "-x", "A", "-x", "B=c d", "a"], Options(command=("a",), num_proc=2, exports=("A", "B=c d"))),
        (
            ["-np", "2", "--mpi-args", "--mca a 'b c'", "--mpi-args=--report-bindings", "a"],
            Options(command=("a",), num_proc=2, mpi_args=("--mca", "a", "b c", "--report-bindings")),
        ),
        (
            ["-np", "2", "--nics", "eth0,eth1", "--network-interface", "10.0.0.0/8", "a"],
            Options(command=("a",), num_proc=2, networks=("eth0", "eth1", "10.0.0.0/8")),
        ),
        (
            ["-np", "2", "--rsh-agent", "/x/agent", "--timeout-start", "3", "--grace", "1.5", "--verbose", "a"],
            Options(command=("a",), num_proc=2, rsh_agent="/x/agent", start_timeout=3.0, grace=1.5, verbose=True),
        ),
        (
            ["-np", "2", "-p", "2222", "-i", "key", "--binding-args", "--bind-to core", "a"],
            Options(command=("a",), num_proc=2, ssh_port=2222, ssh_identity_file="key", mpi_args=("--bind-to", "core")),
        ),
        (
            ["-np", "2", "--output-filename", "d", "-prefix-timestamp", "a"],
            Options(command=("a",), num_proc=2, output_folder="d", timestamps=True),
        ),
        (["-np", "2", "--dry-run", "a"], Options(command=("a",), num_proc=2, dry_run=True)),
        (["--check-build"], Options(check_build=True)),
        # A flag of the command that casyncrun has too belongs to the command.
        (["-np", "2", "a", "-np", "9", "--dry-run"], Options(command=("a", "-np", "9", "--dry-run"), num_proc=2)),
    ],
)
def test_parse(line: list[str], expected: Options) -> None:
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["python"], "-np N"),
        (["-np", "0", "a"], "at least one rank"),
        (["-np", "x", "a"], "invalid int"),
        (["-np", "2"], "no command"),
        (["-np", "5", "-H", "h1:2,h2:2", "a"], "more than the 4 slots"),
        (["-np", "1", "-H", "h1:x", "a"], "HOST:SLOTS"),
        (["-np", "1", "-H", "h1,h1", "a"], "named twice"),
        (["-np", "1", "--hostfile", "/no/such/file", "a"], "No such file"),
        (["-np", "1", "-H", "h1", "--hostfile", "f", "a"], "--hostfile is not allowed with --hosts"),
        (["-np", "1", "-x", "1A=2", "a"], "not VAR"),
        (["-np", "1", "--grace", "-1", "a"], "not a duration"),
        (["-np", "1", "--no-such-flag", "a"], "unrecognized"),
        (["-np", "1", "--rsh-agent", "r", "-p", "22", "a"], "give them to r itself"),
    ],
)
def test_a_line_that_cannot_be_run_says_why(line: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse(line)


def test_hostfile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nh1 slots=2\n\nh2   slots = 4 # big\nh3\nh4:3\n")
    assert parse(["--hostfile", str(file), "a"]).hosts == (Host("h1", 2), Host("h2", 4), Host("h3", 1), Host("h4", 3))


def test_a_hostfile_of_an_editor_and_one_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes("\ufeffh1 slots=2\r\nh2 slots=1\r\n".encode())
    assert parse(["--hostfile", str(file), "a"]).hosts == (Host("h1", 2), Host("h2", 1))
    for content in ("h1 slots=2".encode("utf-16"), b"caf\xe9 slots=2", b"\xff" * 100):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"--hostfile .*: byte \d+ is no UTF-8"):
            parse(["--hostfile", str(file), "a"])
