"""pytest on one rank of a job: `casyncrun -np 3 python tools/mpi_pytest.py NAME PATH...`.

Rank 0 prints; the others write to build/results/NAME-rankR.log, which tools/test_all.py shows when something failed.
Each rank writes its own JUnit file.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parent.parent / "build" / "results"


def main(name: str, paths: list[str]) -> int:
    rank = int(os.environ["CASYNC_RANK"])
    RESULTS.mkdir(parents=True, exist_ok=True)
    if rank > 0:
        log = os.open(RESULTS / f"{name}-rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
    # pytest clears old folders away when it ends, and fails where another pytest was faster: each rank has its own.
    folders = Path(tempfile.gettempdir(), f"casync-{name}-rank{rank}")
    folders.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folders)
    # thread: a rank that waits inside the core for a peer that is gone still ends, and shows where every thread was.
    # 180 s: ranks on two busy cores needed a minute for torch's first optimizer alone, which imports its compiler.
    # No cache: ranks would write one file at once.
    # maxfail: where one rank fails alone, those after it may all wait for peers that are elsewhere.
    options = ["-q", "--timeout=180", "--timeout-method=thread", "--maxfail=10", "-p", "no:cacheprovider"]
    options += [f"--junitxml={RESULTS / name}-rank{rank}.xml"]
    return pytest.main([*options, *paths])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
