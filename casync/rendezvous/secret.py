"""The secret of a job, from its launcher: who does not know it has no part in the job's start.

CASYNC_JOB_SECRET holds it, or CASYNC_JOB_SECRET_FILE names the file that does; casyncrun gives each job one of its own.
Without one the ranks agree on a secret in the store where they meet, which tells it to whoever asks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from casync.errors import InvalidArgumentError

__all__ = ["FILE", "VARIABLE", "job_secret"]

VARIABLE = "CASYNC_JOB_SECRET"
FILE = "CASYNC_JOB_SECRET_FILE"
_LEAST = 16
_MOST = 4096


def job_secret(environ: Mapping[str, str]) -> bytes:
    """Empty: none was given. Raises `InvalidArgumentError` for one that cannot be read, or is too short to be one.

    The variable wins over the file, as that of a launcher inside the job must.
    """
    if text := environ.get(VARIABLE, ""):
        return _checked(VARIABLE, text)
    if not (name := environ.get(FILE, "")):
        return b""
    try:
        with Path(name).open("rb") as file:
            text = file.read(_MOST + 1).decode()
    except OSError as error:
        raise InvalidArgumentError(f"{FILE}={name!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{FILE}={name!r}: the secret is text in UTF-8") from None
    return _checked(FILE, text)


def _checked(name: str, text: str) -> bytes:
    secret = text.strip().encode()
    if not _LEAST <= len(secret) <= _MOST:
        raise InvalidArgumentError(
            f"{name}: the secret has {len(secret)} bytes; it must have {_LEAST} to {_MOST}. "
            "`openssl rand -hex 32` makes one"
        )
    return secret
