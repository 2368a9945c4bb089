"""One rank of a job whose texts are longer than a message: `text_job.py SCENARIO FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

import casync.session.default

SCENARIO, FOLDER = sys.argv[1], Path(sys.argv[2])
LONG = "\N{EURO SIGN}" * 70_000  # 210 kB

hvd.init()
hvd.allreduce(np.ones(10, np.float32), name="a")
if SCENARIO == "name":
    shape = 10 + hvd.rank()
    try:
        hvd.allreduce(np.ones(shape, np.float32), name="n" * 70_000)
    except hvd.MismatchError as error:
        (FOLDER / f"outcome.{hvd.rank()}").write_text(str(error))
    hvd.allreduce(np.ones(10, np.float32), name="n" * 70_000)  # and it can be used
    sys.exit(0)
if hvd.rank() == 1:
    time.sleep(1)  # the other rank is at "b" by then
    if SCENARIO == "raises":
        raise RuntimeError(LONG)
    casync.session.default.session().abort(LONG)
    time.sleep(2)
    sys.exit(0)
try:
    hvd.allreduce(np.ones(10, np.float32), name="b")
except hvd.AbortedError as error:
    (FOLDER / f"outcome.{hvd.rank()}").write_text(str(error))
    raise
