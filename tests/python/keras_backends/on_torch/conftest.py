"""Every rank runs the same tests (support/ranks.py)."""

import torch

from support.ranks import pytest_runtest_call, rank, several, size, world

__all__ = ["pytest_runtest_call", "rank", "several", "size", "world"]

torch.set_num_threads(1)
