"""Whole programs through hvd.DistributedOptimizer."""

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "torch"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("cell", cells_of("optimizer"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])
