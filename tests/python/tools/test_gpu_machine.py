"""What `make test-gpu` begins with on a machine of its own: an environment on top of a Python, and its packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.files import ROOT, load


def test_an_overlay_has_what_this_python_has_and_what_is_installed_in_it_comes_first(tmp_path: Path) -> None:
    home = tmp_path / "environment"
    subprocess.run([sys.executable, str(ROOT / "tools/overlay.py"), str(home)], check=True)
    python = str(home / "bin" / "python")
    where = "import casync, sys, sysconfig; print(casync.__file__, sys.prefix, sysconfig.get_path('purelib'))"

    def said() -> list[str]:
        return subprocess.run([python, "-I", "-c", where], capture_output=True, text=True, check=True).stdout.split()

    below, prefix, packages = said()
    assert prefix == str(home) and not below.startswith(prefix)
    (Path(packages) / "casync.py").touch()
    assert said()[0] == str(Path(packages) / "casync.py")


def test_an_extra_of_ours_within_another_is_spelt_out() -> None:
    requirements = load("tools/requirements.py").requirements
    gpu, test = (requirements([extra], ROOT / "pyproject.toml") for extra in ("test-gpu", "test"))
    assert "pytest-timeout" in gpu and set(gpu) < set(test)
    assert not [requirement for requirement in test if requirement.startswith("casync")]


def test_requirements_of_other_versions_of_python_are_left_out(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        "build-system.requires = []\nproject.optional-dependencies = {}\n"
        "project.dependencies = ['rich', \"old; python_version < '3'\", \"new>=1; python_version >= '3'\"]\n"
    )
    assert load("tools/requirements.py").requirements(["run"], pyproject) == ["rich", "new>=1"]
