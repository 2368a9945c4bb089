"""Runs the tests of a group that are left out while nothing they depend on changes, and notes that they have passed.

    python tools/passed.py compll     after a change of CompLL or of a codec; commit tests/python/passed.json with it
    python tools/passed.py --check    names the groups whose tests would run now

Without a note `make test-rest` runs them, which takes longer and finds the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python/shared"))

from support.unchanged import GROUPS, PASSED, TESTS, digest, has_passed  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", nargs="?", choices=sorted(GROUPS))
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.group is None:
        print(*(group for group in sorted(GROUPS) if not has_passed(group)), sep="\n")
        return 0
    before = digest(given.group)
    pytest = [str(Path(sys.executable).with_name("pytest")), "-q", "-n2", "--dist=loadfile", "--durations=20"]
    status = subprocess.run(
        [*pytest, TESTS[given.group]], cwd=ROOT, env={**os.environ, "CASYNC_TEST_EVERYTHING": "1"}, check=False
    ).returncode
    if status == 0 and digest(given.group) == before:
        passed = json.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}
        PASSED.write_text(
            json.dumps({**passed, given.group: before}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
