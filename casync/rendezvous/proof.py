"""How two processes of a job prove to each other that they know its secret, which neither says. Pure.

    caller: hello                   its tag tells, to who knows the secret, that the caller does; who listened in could
    called: nonce, proof            repeat it, so both prove over what the other has drawn
    caller: proof
    called: WELCOME                 or it hangs up

Nobody else can answer a proof. Bytes that follow are neither encrypted nor authenticated.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass

__all__ = ["MAGIC", "NONCE_BYTES", "PROOF_BYTES", "WELCOME", "Hello", "proof", "tag_of"]

MAGIC = b"CaSync02"
NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size
WELCOME = b"\x01"
_HELLO = struct.Struct(">8s16sIIH16s")


@dataclass(frozen=True)
class Hello:
    """A caller's first words: what it calls for, who calls, whom it means, and which of its connections this is."""

    tag: bytes
    caller: int = 0
    called: int = 0
    number: int = 0
    nonce: bytes = b""

    SIZE = _HELLO.size

    def pack(self) -> bytes:
        nonce = self.nonce or secrets.token_bytes(NONCE_BYTES)
        return _HELLO.pack(MAGIC, self.tag, self.caller, self.called, self.number, nonce)

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Raises `ValueError` for what is none."""
        if len(data) != cls.SIZE:
            raise ValueError("it is too short for a greeting")
        magic, tag, caller, called, number, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ValueError("it does not speak CaSync, or another version of it")
        return cls(tag, caller, called, number, nonce)


def tag_of(secret: bytes, purpose: str) -> bytes:
    """Return the tag with which a hello for `purpose` begins."""
    return hmac.new(secret, b"tag" + purpose.encode(), hashlib.sha256).digest()[:16]


def proof(secret: bytes, whose: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Prove that `whose`, b"caller" or b"called", knows the secret, over the packed hello and the called's nonce."""
    return hmac.new(secret, whose + hello + nonce, hashlib.sha256).digest()
