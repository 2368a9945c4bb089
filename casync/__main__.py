"""`python -m casync ...`, for machines where another tool has the name `casync`."""

from __future__ import annotations

import sys

from casync.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
