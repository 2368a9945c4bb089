"""What this build can do, by Horovod's questions: `mpi_built()`, `nccl_built()` and so on. Callable before `init()`."""

from __future__ import annotations

import importlib.util

from casync.cuda import nccl_library
from casync.errors import DeviceError
from casync.session import default

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_built() -> bool:
    """Whether there is an MPI transport."""
    return importlib.util.find_spec("casync._mpi") is not None


def mpi_enabled() -> bool:
    """Whether ranks reach each other over MPI; False in a world of one, and where sockets connect them. ValueError
    before `init()`.
    """
    return default.session().job.name == "mpi"


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from any thread, without which `init()` raises. ValueError before `init()`."""
    return mpi_enabled()


def gloo_built() -> bool:
    """False: ranks reach each other over MPI, or by CaSync's own sockets."""
    return False


def gloo_enabled() -> bool:
    """False: ranks reach each other over MPI, or by CaSync's own sockets."""
    return False


def nccl_built() -> int:
    """The number of the NCCL by which GPUs may send to each other, 22809 for 2.28.9; 0 if there is none. Loads it."""
    from casync import _core

    try:
        return _core.nccl_facts(nccl_library())[0]
    except DeviceError:
        return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """True: one build serves machines with and without a GPU. `casync.cuda.require()` says whether there is one."""
    return True


def rocm_built() -> bool:
    """False: of GPUs, NVIDIA's are served."""
    return False
