"""docs/launcher.md has the tables that the code holds."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_current_tables():
    spec = importlib.util.spec_from_file_location("casync_tables", ROOT / "tools" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert tables.DOCUMENT.read_text(encoding="utf-8") == tables.document(), "run `python tools/tables.py`"
