"""Payloads that no encoder wrote: decoding gives values or refuses, and touches no memory but its own, as the address
and undefined behaviour sanitizers see it.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll.library import library_files
from support.quantisers import library_quantisers

OWN = sorted(path.stem for path in (Path(__file__).parents[3] / "compll" / "units").glob("*.cll"))
NAMES = sorted({*library_files(), *OWN} - library_quantisers() - {"powersgd", "topkc", "thc"})
F = np.float32
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", NAMES)
def test_what_nobody_encoded_is_refused_or_decoded(name: str, workshop: Any, unit_machine: Any) -> None:
    program = workshop.compile(name, workshop.isas[-1], "hostile.cc", "-O0", "-g1", "-fsanitize=address,undefined",
                               "-fno-sanitize-recover=all")  # fmt: skip
    codec = unit_machine(name, (1, 1)).codec
    kinds = [F if parameter.element.floating else np.int32 for parameter in codec.parameters]
    sent = struct.pack("<ii", len(kinds), len(codec.states))
    sent += b"".join(kind(p.default).tobytes() for kind, p in zip(kinds, codec.parameters, strict=True))
    for n in (1, 40, 700):
        x = (np.random.default_rng(n).standard_normal(n) * 0.01).astype(F)
        payload = unit_machine(name, (1, n)).encode(x)
        sent += struct.pack("<qq", n, len(payload)) + payload
    said = subprocess.run([str(program), "400", "1"], input=sent, capture_output=True, timeout=50)
    assert said.returncode == 0, said.stderr.decode(errors="replace")[:3000]
    refused, decoded = map(int, said.stdout.split())
    assert refused > 0 and decoded > 0 and refused + decoded == 1200
