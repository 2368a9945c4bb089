"""Starts the ranks of one host where there is no mpirun: `local_start.py N COMMAND...` runs COMMAND N times.

Each finds its place in CASYNC_STARTED_RANK and CASYNC_STARTED_SIZE. Standard library only, run by its path. When this
process dies, of a signal too, each rank's wrapper hears of it (`rank_entry`) and ends its command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Status 1 if a rank could not be started or left with another status than 0."""
    size, command = int(argv[0]), list(argv[1:])
    place = {"CASYNC_STARTED_SIZE": str(size)}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place, "CASYNC_STARTED_RANK": str(rank)}) for rank in range(size)
    ]
    return int(any([rank.wait() != 0 for rank in ranks]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
