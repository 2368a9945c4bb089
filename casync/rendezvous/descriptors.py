"""How many files and connections this process may have open at once."""

from __future__ import annotations

import os
import resource

from casync.errors import StartError

__all__ = ["exhausted", "make_room"]

_ENOUGH = 1 << 16
_SLACK = 32
"""Descriptors kept free for what opens and closes beside the connections."""


def make_room(what: str, least: int, most: int) -> None:
    """Raise the soft limit where `most` descriptors more may not fit. Raises `CasyncError` if `least` cannot."""
    used = _used()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _fits(used + most + _SLACK, soft):
        return
    wanted = max(_ENOUGH, used + most + _SLACK)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if not _fits(used + least, soft):
        raise StartError(
            f"{what} needs {least} descriptors beside the {used} that are open, and this process may have {soft}: have "
            f"`ulimit -n {used + most + _SLACK}` run where it is started, or the limit of its container raised"
        )


def exhausted(what: str) -> str:
    """The text for an error of the system that says so."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{what}: {_used()} descriptors are open, and this process may have {soft}. Have `ulimit -n` raise that where "
        "it is started"
    )


def _fits(count: int, limit: int) -> bool:
    return limit == resource.RLIM_INFINITY or count <= limit


def _used() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is left to look
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
