"""The cache that keeps what was compiled for this host, for the next process. It is in `$CASYNC_CACHE_DIR`, or
`casync` in the user's cache folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from casync.errors import NotAvailableError

__all__ = ["cache_folder", "keep", "locked"]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the cache's folder, which may not exist yet. Raises `NotAvailableError` without a setting or a home."""
    if given := environ.get("CASYNC_CACHE_DIR"):
        return Path(given)
    try:
        return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "casync"
    except RuntimeError:
        raise NotAvailableError(
            "there is no home folder to keep compiled codecs in: name a folder with CASYNC_CACHE_DIR=..."
        ) from None


@contextmanager
def locked(target: Path, what: str) -> Iterator[None]:
    """While one process of the host makes `target`, others wait here; they must look again whether it is there then.

    Raises `NotAvailableError`, about `what`, if the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target.with_name(f"{target.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise NotAvailableError(
            f"{what} cannot be compiled into {target.parent}: {error}. Name a folder that can be written with "
            "CASYNC_CACHE_DIR=..."
        ) from None


def keep(made: Path, target: Path) -> None:
    """`made` becomes `target`, all of it or nothing: a host that loses power must not keep half a file."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    made.rename(target)
