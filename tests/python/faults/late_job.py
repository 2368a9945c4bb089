"""One rank of a job in which a rank submits late: run as `late_job.py SCENARIO FOLDER LATE`.

Rank 0 keeps the book of who submitted what, so it is its log that the reports go to; here also into FOLDER, where the
late rank sees that it was reported. Each rank notes what it got in `outcome.RANK`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

SCENARIO, FOLDER, LATE = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
RANK = int(os.environ["CASYNC_RANK"])
# The first is sent at once when it is known, the second waits for its start; both are agreed on in their first step.
SIZES = {"small": 10, "large": 200_000}
STEPS = 2


class Reports(logging.Handler):
    """Keeps each report in a file of its own, written whole or not at all."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        partial = FOLDER / "partial"
        partial.write_text(record.getMessage())
        partial.rename(FOLDER / f"report.{self.count}")
        self.count += 1


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.02)


def allreduce(name: str) -> float:
    """The sum over the ranks of their number + 1, which every element holds."""
    tensor = np.full(SIZES[name], RANK + 1, np.float32)
    if RANK % 2 == 0:
        result = hvd.allreduce(tensor, op=hvd.Sum, name=name)  # even ranks submit here
    else:
        result = hvd.allreduce(tensor, op=hvd.Sum, name=name)  # odd ranks submit here
    assert (result == result[0]).all()
    return float(result[0])


def warned() -> list[float]:
    """The late rank waits for the report before it submits."""
    results: list[float] = []
    for name in SIZES:
        for _ in range(STEPS):
            if RANK == LATE:
                wait_for(FOLDER / f"report.{len(results)}")
            results.append(allreduce(name))
    return results


def timed_out() -> list[object]:
    """The late rank waits until the others have given up; it is told so, and then all go on."""
    results: list[object] = []
    for name in SIZES:
        if RANK == LATE:
            for rank in range(hvd.size()):
                if rank != LATE:
                    wait_for(FOLDER / f"{name}.{rank}")
        try:
            allreduce(name)
        except hvd.StallError as error:
            results.append(str(error))
        (FOLDER / f"{name}.{RANK}").touch()
        results.append(allreduce(name))
    return results


def main() -> None:
    if RANK == 0:
        logging.getLogger("casync").addHandler(Reports())
    hvd.init()
    hvd.barrier()
    results = warned() if SCENARIO == "warned" else timed_out()
    (FOLDER / f"outcome.{RANK}").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
