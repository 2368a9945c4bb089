"""Whole programs through Transformers' Trainer."""

from importlib.util import find_spec

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "transformers"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]


@pytest.mark.parametrize("cell", cells_of("transformers"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])
