"""Places that hold nothing of ours: a copy of the tracked files, and virtual environments with nothing but pip.

`tools/check_install.py` and `tools/check_readme.py` begin there, so that no file which git does not know, and no
package which happens to be in .venv, helps along.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "clean_environment", "copy_tracked_files", "make_environment", "run"]

ROOT = Path(__file__).resolve().parent.parent

_HELD = """
import sys
from importlib import metadata
held = {found.metadata["Name"] for found in metadata.distributions()} - {"pip", "setuptools"}
sys.exit(f"{sys.prefix} is to hold pip alone, and holds {', '.join(sorted(held))}" if held else 0)
"""


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what leads to .venv or the checkout. Settings of pip, proxies and the compiler stay."""
    ours = ("CASYNC_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    kept = {name: value for name, value in environ.items() if not name.startswith(ours)}
    scripts = str(Path(sys.prefix) / "bin")
    kept["PATH"] = os.pathsep.join(p for p in environ.get("PATH", os.defpath).split(os.pathsep) if p != scripts)
    return kept


def copy_tracked_files(target: Path) -> None:
    """The files that git tracks, as they are now, and no others."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def make_environment(home: Path) -> Path:
    """A virtual environment of the Python that .venv was made from; its interpreter. It holds pip alone."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    run([str(base), "-I", "-m", "venv", "--clear", str(home)])
    python = home / "bin" / "python"
    run([str(python), "-I", "-c", _HELD])
    return python


def run(command: Sequence[str], environ: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Show the command, run it, and show how long it took; an exception if it fails."""
    shown = shlex.join(word if "\n" not in word else "..." for word in command).replace(f"{ROOT}/", "")
    print(f"$ {shown}", flush=True)
    begin = time.monotonic()
    environ = clean_environment(os.environ) if environ is None else environ
    subprocess.run(command, check=True, env=environ, cwd=cwd)
    print(f"  {time.monotonic() - begin:.1f} s", flush=True)
