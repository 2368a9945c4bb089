"""Whole programs through Keras and through TensorFlow, in one job."""

from importlib.util import find_spec

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "tensorflow"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed"),
]


@pytest.mark.parametrize("cell", cells_of("keras", "tensorflow"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])
