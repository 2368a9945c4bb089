"""Horovod's exceptions, where Horovod has them. All that CaSync raises itself is in `casync.errors`."""

from __future__ import annotations

from casync.errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; `skip_sync` says that state need not be synchronised anew."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the text of a `HorovodVersionMismatchError`."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}: reinstall CaSync, "
        "so that it is built for the new one"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework is not of the version that an extension was built for. CaSync has no extension that a new version of
    torch could break, and does not raise it.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version
