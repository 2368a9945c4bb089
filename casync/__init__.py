"""CaSync: gradient synchronisation that knows about compression.

A training script imports an adaptor (`import casync.torch as hvd`) and is started with
`casyncrun -np 4 python train.py`; `casync.run(function, np=4)` calls a function on 4 ranks. This module stays light on
purpose: every command and every rank imports it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__", "include", "load_state", "run", "save_state"]

__version__: str


def _version() -> str:
    """The installed version; in a checkout that is not installed, the VERSION file at its root."""
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version("casync")
    except metadata.PackageNotFoundError:
        return (Path(__file__).resolve().parent.parent / "VERSION").read_text(encoding="utf-8").strip()


def include() -> str:
    """The folder of the public headers, for `-I`: glue in C includes `casync/c_api.h`."""
    from pathlib import Path

    installed = Path(__file__).resolve().parent / "compll" / "include"
    return str(installed if installed.exists() else installed.parents[2] / "casync_core" / "include")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()  # late: to look for it takes longer than all the rest
    if name in ("load_state", "save_state"):
        from casync.checkpoint import job as checkpoint  # late: numpy takes a while to load

        return getattr(checkpoint, name)
    if name == "run":
        from casync.launcher.run import run  # late: ranks do without the launcher

        return run
    raise AttributeError(f"module 'casync' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
