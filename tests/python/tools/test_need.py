"""tools/need.sh, where PATH holds only made-up programs that write down how they were called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NEED = Path(__file__).resolve().parents[3] / "tools" / "need.sh"


class Machine:
    """A PATH with these programs alone; `calls` are the command lines with which they were run."""

    def __init__(self, folder: Path, **says: str) -> None:
        self._folder, self._log = folder, folder / "calls"
        for name, output in {"apt-get": "", "sudo": "", **says}.items():
            program = folder / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >> {self._log}\necho {output}\n', encoding="utf-8")
            program.chmod(0o755)

    def need(self, *packages: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/bash", str(NEED), *packages]
        return subprocess.run(
            command, env={"PATH": str(self._folder)}, capture_output=True, text=True, timeout=30, check=False
        )

    @property
    def calls(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []


def test_a_user_gets_the_one_line_and_nothing_is_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, id="1000")
    done = machine.need("g++", "iproute2")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "    sudo apt-get install g++ iproute2"
    assert machine.calls == ["id -u"]


def test_root_gets_what_is_missing_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, id="0", **{"c++": ""})
    done = machine.need("g++", "iproute2")
    assert done.returncode == 0, done.stderr
    install = "apt-get install -qq -y --no-install-recommends iproute2"
    assert machine.calls == ["id -u", "apt-get update -qq", install]


def test_nothing_is_asked_where_nothing_is_missing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, id="1000", ip="", tc="")
    assert machine.need("iproute2").returncode == 0
    assert machine.calls == []


def test_another_system_is_told_what_is_missing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, id="0")
    (tmp_path / "apt-get").unlink()
    done = machine.need("g++")
    assert done.returncode == 1 and done.stderr.startswith("Missing: g++. ")


def test_a_package_without_a_check_is_a_mistake_of_ours(tmp_path: Path) -> None:
    assert Machine(tmp_path, id="0").need("make-believe").returncode == 2


@pytest.mark.parametrize("package", ["python3.11-venv", "python3.11-dev"])
def test_a_python_that_is_not_there_lacks_its_packages(tmp_path: Path, package: str) -> None:
    done = Machine(tmp_path, id="1000").need(package)
    assert done.stderr.endswith(f"sudo apt-get install {package}\n")
