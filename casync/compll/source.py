"""The text of a .cll file, read in one way by every command and by the runtime."""

from __future__ import annotations

from pathlib import Path

from casync.errors import InvalidArgumentError

__all__ = ["read_source"]


def read_source(path: str | Path) -> str:
    """The file's text, the same for every way to end a line and with a byte order mark or without.

    A codec of one's own is known by the digest of this text: an editor's habits make no other codec of it. Raises
    `InvalidArgumentError` for what cannot be read or is no UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} cannot be read: byte {error.start} is no UTF-8 text") from None
