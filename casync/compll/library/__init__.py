"""The algorithms that CaSync brings along, a .cll file each."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_files"]


def library_files() -> dict[str, Path]:
    """Each algorithm's file by the algorithm's name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.cll"))}
