"""Hooks for all Python tests. They write which test runs now, for tools/watch.py, and leave out the slow tests of what
has not changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")

from support import unchanged  # noqa: E402

RUNNING = os.environ.get("CASYNC_TEST_RUNNING")
"""Path of that file; under casyncrun each rank appends its number."""


def pytest_runtest_logstart(nodeid: str) -> None:
    if RUNNING:
        who = f"{os.environ.get('CASYNC_RANK', '')}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
        Path(f"{RUNNING}{who}.running").write_text(nodeid, encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, except at night, tests for the night, and slow tests of a group that have passed with the same files."""
    if os.environ.get("CASYNC_TEST_EVERYTHING"):
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="make nightly runs it"))
    for group, folder in unchanged.TESTS.items():
        own = [item for item in items if item.path.is_relative_to(unchanged.ROOT / folder)]
        slow = [item for item in own if item.get_closest_marker("slow")]
        if slow and unchanged.has_passed(group):
            for item in slow:
                item.add_marker(pytest.mark.skip(reason=f"{group} is as it was when these passed (tools/passed.py)"))
