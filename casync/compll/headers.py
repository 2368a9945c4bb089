"""The headers that generated code is compiled with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["device_headers", "header_folders"]


def header_folders() -> list[Path]:
    """The installed ones; in a checkout that is not installed, those of the core."""
    installed = Path(__file__).parent / "include"
    core = Path(__file__).resolve().parents[2] / "casync_core"
    return [installed] if installed.exists() else [core / "include", core / "src"]


def device_headers() -> dict[str, str]:
    """The texts of those that device code may include, by the names it includes them by."""
    paths = {
        str(path.relative_to(folder)): path
        for folder in header_folders()
        for path in [*folder.glob("codec/unit.hpp"), *folder.glob("codec/cuda/kernels/**/*.hpp")]
    }
    return {name: path.read_text(encoding="utf-8") for name, path in sorted(paths.items())}
