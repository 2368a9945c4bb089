"""GPUs: whether there is one that CaSync can use. Importing this costs nothing, and works without any."""

from __future__ import annotations

__all__ = ["devices", "require"]


def devices() -> list[str]:
    """The names of the GPUs that CUDA's driver sees, in the order in which it counts them.

    Raises `DeviceError` if there is no driver, if it is too old, or if it sees none: with the reason and the remedy.
    """
    from casync import _core

    return [device["name"] for device in _core.cuda_facts()["devices"]]


def require() -> None:
    """Raise what `devices` raises, if it does: for the first lines of a program that cannot do without a GPU."""
    devices()
