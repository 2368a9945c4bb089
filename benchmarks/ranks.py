"""Runs a benchmark's worker as ranks on this host."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["command", "result_of"]


def command(ranks: int, module: str, *words: str) -> list[str]:
    """The casyncrun command for `ranks` ranks of `python -m module words`."""
    return [sys.executable, "-m", "casync", "run", "-np", str(ranks), "--", sys.executable, "-m", module, *words]


def result_of(ranks: int, module: str, *words: str, timeout: float) -> Any:
    """Run them to their end. What the worker wrote as JSON to the file that its last argument names."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        done = subprocess.run(command(ranks, module, *words, str(out)), capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise SystemExit(f"{module} {' '.join(words)} failed\n{done.stdout}\n{done.stderr}")
        return json.loads(out.read_text())
