#!/usr/bin/env python3
"""Hands a target in Python to atheris: `run_atheris.py compll_text -max_total_time=60 FOLDER...`, or `strangers`.

The arguments behind the target are libFuzzer's. A program by itself, because libFuzzer starts it again when it merges
inputs.
"""

from __future__ import annotations

import importlib
import random
import re
import sys

import atheris

TARGET = sys.argv[1]
LOOKED_INTO = {
    "compll_text": ["casync.compll", "compll_text"],
    "strangers": [
        *(
            "casync.rendezvous.gate",
            "casync.rendezvous.proof",
            "casync.rendezvous.socket_store",
            "casync.rendezvous.handshake",
            "casync.launcher.greeting",
        ),
        *("casync.launcher.job", "casync.launcher.rank.wire", "strangers"),
    ],
}

with atheris.instrument_imports(include=LOOKED_INTO[TARGET]):
    look_at = importlib.import_module(TARGET).look_at
    from casync.compll.library import library_files

TOKEN = re.compile(rb"\w+|\s+|.", re.DOTALL)
WORDS = sorted({token for path in library_files().values() for token in TOKEN.findall(path.read_bytes())})


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Whole tokens, for bytes alone hardly ever get past the parser; every third time bytes all the same."""
    dice = random.Random(seed)
    if dice.randrange(3) == 0:
        return atheris.Mutate(data, most)
    tokens = TOKEN.findall(data) or [b""]
    for _ in range(dice.randint(1, 4)):
        at, other = dice.randrange(len(tokens)), dice.randrange(len(tokens))
        kind = dice.randrange(4)
        if kind == 0:
            del tokens[at : at + dice.randint(1, 6)]
            tokens = tokens or [b""]
        elif kind == 1:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == 2:
            tokens[at:at] = tokens[other : other + dice.randint(1, 12)]
        else:
            tokens[at] = dice.choice(WORDS)
    return b"".join(tokens)[:most]


ARGUMENTS = [sys.argv[0], *sys.argv[2:]]
if TARGET == "compll_text":
    atheris.Setup(ARGUMENTS, look_at, custom_mutator=mutate)
else:
    atheris.Setup(ARGUMENTS, look_at)
atheris.Fuzz()
