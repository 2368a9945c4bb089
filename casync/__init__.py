"""CaSync: gradient synchronisation that knows about compression.

A training script imports an adaptor (`import casync.torch as hvd`) and is started with
`casyncrun -np 4 python train.py`. This module stays light on purpose: every command and every rank imports it.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

__all__ = ["__version__"]


def _version() -> str:
    """The installed version; in a checkout that is not installed, the VERSION file at its root."""
    try:
        return metadata.version("casync")
    except metadata.PackageNotFoundError:
        return (Path(__file__).resolve().parent.parent / "VERSION").read_text(encoding="utf-8").strip()


__version__ = _version()
