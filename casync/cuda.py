"""GPUs: whether there is one that CaSync can use. Importing this costs nothing, and works without any."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["devices", "nccl_library", "nccl_version", "require"]


def devices() -> list[str]:
    """The names of the GPUs that CUDA's driver sees, in the order in which it counts them.

    Raises `DeviceError` if there is no driver, if it is too old, or if it sees none: with the reason and the remedy.
    """
    from casync import _core

    return [device["name"] for device in _core.cuda_facts()["devices"]]


def require() -> None:
    """Raise what `devices` raises, if it does: for the first lines of a program that cannot do without a GPU."""
    devices()


def nccl_library() -> str:
    """Return where NVIDIA's package has NCCL, in a folder that the loader does not look at; empty: there is none."""
    packages = importlib.util.find_spec("nvidia")
    folders = [] if packages is None else packages.submodule_search_locations or ()
    found = [path for folder in folders for path in Path(folder).glob("nccl/lib/libnccl.so.2")]
    return str(found[0]) if found else ""


def nccl_version() -> str:
    """The version of the NCCL by which GPUs send to each other: the framework's own, a package's, or the system's.

    Loads it. Raises `DeviceError` if there is none, or if it is older than 2.18: with the reason and the remedy.
    """
    from casync import _core

    number, _ = _core.nccl_facts(nccl_library())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
