"""`casync bench`: measures with real ranks whether to compress, and with which codec.

`cli` reads the command line and starts the ranks. `measure` is what each rank runs. `ways` decides, without ranks or
clock, what counts and what to recommend. `show` prints it.
"""

from __future__ import annotations

__all__: list[str] = []
