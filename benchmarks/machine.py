"""What a benchmark ran on, for the JSON that stays in the tree."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["describe", "in_words", "revision"]

Machine = dict[str, str | int]


def describe() -> Machine:
    """Processor, cores that may be used, kernel, and the versions that matter."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "processor": found[1] if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "casync": metadata.version("casync"),
    }


def in_words(machine: Machine) -> str:
    """One phrase for a caption."""
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    return f"{cores} of {machine['processor']}, Linux {machine['kernel']}, torch {machine['torch']}"


def revision() -> str:
    """The commit that is checked out, in short, and "+" where files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
