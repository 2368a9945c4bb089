"""Whole programs through MXNet."""

from importlib.util import find_spec

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "mxnet"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed"),
]


@pytest.mark.parametrize("cell", cells_of("mxnet"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])
