"""benchmarks/ is beside the package; appended, so that the checkout's casync does not hide the installed one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
