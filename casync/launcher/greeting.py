"""The first words of a rank to casyncrun: the proof that it is of this job, then who and where it is. Pure.

The token that casyncrun hands its ranks never travels: a rank shows what only its owner can make of it.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass

from casync.launcher.rank.wire import PROOF_BYTES, hello_proof

__all__ = ["Hello", "hello_of"]


@dataclass(frozen=True)
class Hello:
    """One rank's own account of itself. `port` is free on its host, for torch."""

    rank: int
    hostname: str
    pid: int
    local_rank: int | None
    port: int


def hello_of(kind: str, body: bytes, token: str, size: int) -> Hello:
    """The first frame of a connection. Raises `ValueError` for any that is not a rank's of this job of `size` ranks."""
    if kind != "H" or not hmac.compare_digest(body[:PROOF_BYTES], hello_proof(token)):
        raise ValueError("not of this job")
    try:
        said = json.loads(body[PROOF_BYTES:])  # of a rank from here on
        local_rank = said["local_rank"]
        hello = Hello(
            int(said["rank"]),
            str(said["hostname"]),
            int(said["pid"]),
            None if local_rank is None else int(local_rank),
            int(said["port"]),
        )
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no greeting: {error!r}") from None
    if not 0 <= hello.rank < size:
        raise ValueError(f"there is no rank {hello.rank} of {size}")
    return hello
