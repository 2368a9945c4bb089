"""What only one of the frameworks beside PyTorch has, and what all must have alike: every rank runs the same tests
(support/ranks.py), with a Python that has these frameworks (`make test` makes it in build/frameworks).
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from casync.errors import CasyncError
from support.ranks import pytest_runtest_call, rank, rng, several, size, world

__all__ = ["pytest_runtest_call", "rank", "rng", "several", "size", "world"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if find_spec("tensorflow") is not None:
    import tensorflow

    # As few as TensorFlow has at all: whatever keeps one of them waiting shows.
    tensorflow.config.threading.set_inter_op_parallelism_threads(2)
    tensorflow.config.threading.set_intra_op_parallelism_threads(1)


@pytest.fixture(autouse=True)
def mxnet_as_a_program_has_it(world: None) -> Iterator[None]:
    """Without the arrays without elements that the suite of all adaptors has, and with nothing left of another test."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is not None:
        mxnet.util.set_np_shape(False)
    yield
    if mxnet is not None:
        with contextlib.suppress(mxnet.MXNetError, CasyncError):
            mxnet.nd.waitall()
