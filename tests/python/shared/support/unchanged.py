"""Tests of what seldom changes: they run where it has changed since they last passed, and at night.

`tests/python/passed.json` holds for each group a digest of the files that its tests depend on. `tools/passed.py` runs a
group and writes the digest when all of its tests pass.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PASSED = ROOT / "tests" / "python" / "passed.json"
GROUPS: dict[str, tuple[str, ...]] = {
    "compll": (
        "casync/compll",
        "casync_core/include/casync/codec.hpp",
        "casync_core/src/codec",
        "tests/compll",
        "tests/python/compll",
    ),
}
"""The files and folders that the tests of each group depend on."""
TESTS = {"compll": "tests/python/compll"}
"""The folder of each group's tests."""
_MADE = (".pyc", ".so")


def digest(group: str, root: Path = ROOT) -> str:
    """Of the names and the contents of the group's files."""
    state = hashlib.blake2b(digest_size=16)
    for place in GROUPS[group]:
        for path in sorted([root / place, *(root / place).rglob("*")]):
            if path.is_file() and path.suffix not in _MADE:
                state.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return state.hexdigest()


def has_passed(group: str) -> bool:
    """Whether the group's tests have passed with these files."""
    passed = json.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}
    return bool(passed.get(group) == digest(group))
