"""The tables of docs/launcher.md, which the code that they describe holds. Each stands between marks with its name.

python tools/tables.py          writes them into the page
"""

from __future__ import annotations

from pathlib import Path

from casync import horovod_variables
from casync.launcher import flags

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "launcher.md"
TABLES = {"variables": horovod_variables.manual, "flags": flags.manual}


def document() -> str:
    """The page with its tables as they are to be. Raises ValueError for a mark that is not there."""
    page = DOCUMENT.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = (f"<!-- {name}: {mark} -->\n" for mark in ("begin", "end"))
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = f"{page[:start]}\n{table()}\n{page[stop:]}"
    return page


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
