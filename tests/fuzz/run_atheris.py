#!/usr/bin/env python3
"""Hands compll_text.py to atheris; the arguments are libFuzzer's: `run_atheris.py -max_total_time=60 FOLDER...`.

A program by itself, because libFuzzer starts it again when it merges inputs.
"""

from __future__ import annotations

import random
import re
import sys

import atheris

with atheris.instrument_imports(include=["casync.compll", "compll_text"]):
    from compll_text import look_at

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


atheris.Setup(sys.argv, look_at, custom_mutator=mutate)
atheris.Fuzz()
