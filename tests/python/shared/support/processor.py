"""What the processor of this machine can run."""

from __future__ import annotations

import functools
from pathlib import Path

NEEDED: dict[str, set[str]] = {
    "baseline": set(),
    "avx2": {"avx2", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
}


@functools.cache
def flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def runs(isa: str) -> bool:
    """Whether code that is generated for `isa` can run here."""
    return NEEDED[isa] <= flags()
