"""PyTorch's own tests of `torch.distributed`, which come in its wheel, with the backend "casync", by hand:

    python of_pytorch.py -k allreduce -k DistributedDataParallel

The options are those of `unittest`. Most of the tests are for devices, and skip themselves. They need `expecttest`.
"""

import os
import tempfile
import unittest

import casync.torch  # noqa: F401  # the backend
import torch
from torch.testing._internal.common_distributed import DistTestCases

# Tests choose by these when they are imported.
os.environ.setdefault("BACKEND", "casync")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature].add("casync")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestCasync(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
