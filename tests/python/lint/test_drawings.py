"""The diagrams of the manual are what tools/drawings.py draws."""

import pytest

from support.files import load

drawings = load("tools/drawings.py")


@pytest.mark.parametrize("file", drawings.DRAWINGS)
def test_the_drawing_is_fresh(file):
    drawn = (drawings.FIGURES / file).read_text(encoding="utf-8")
    assert drawn == drawings.DRAWINGS[file]().svg(), "run `python tools/drawings.py`"
