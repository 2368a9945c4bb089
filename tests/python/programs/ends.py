"""How a rank fails."""

from __future__ import annotations

import os
import signal


def broken() -> None:
    raise ValueError("the labels of rank 1 are broken")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
