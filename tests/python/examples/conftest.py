"""netlab lies beside the package, not in it; appended, so that an installed casync is not shadowed by the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
