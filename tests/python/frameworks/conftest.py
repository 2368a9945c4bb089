"""What only one of the frameworks beside PyTorch has, and what all must have alike: every rank runs the same tests
(support/ranks.py), with a Python that has these frameworks (`make test` makes it in build/frameworks).
"""

import os
from importlib.util import find_spec

from support.ranks import pytest_runtest_call, rank, rng, several, size, world

__all__ = ["pytest_runtest_call", "rank", "rng", "several", "size", "world"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if find_spec("tensorflow") is not None:
    import tensorflow

    # As few as TensorFlow has at all: whatever keeps one of them waiting shows.
    tensorflow.config.threading.set_inter_op_parallelism_threads(2)
    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
