"""What all Python tests share: the file that says which test runs now, for tools/watch.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")

RUNNING = os.environ.get("CASYNC_TEST_RUNNING")
"""Path of that file; under casyncrun each rank appends its number."""


def pytest_runtest_logstart(nodeid: str) -> None:
    if RUNNING:
        who = f"{os.environ.get('CASYNC_RANK', '')}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
        Path(f"{RUNNING}{who}.running").write_text(nodeid, encoding="utf-8")
