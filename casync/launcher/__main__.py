"""`python -m casync.launcher`: the same as `casyncrun`."""

from __future__ import annotations

import sys

from casync.launcher import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
