"""What Python shares with the compiled core. The build makes the module (casync_core/src/bindings/constants.cc), and it
is there where `_core` does not load. Names stand in the order of the core's numbers.
"""

from typing import Final

ERROR_KINDS: Final[tuple[str, ...]]
OP_KINDS: Final[tuple[str, ...]]
REDUCE_OPS: Final[tuple[str, ...]]
DTYPES: Final[tuple[str, ...]]
FLOATING_DTYPES: Final[tuple[str, ...]]
TOPOLOGIES: Final[tuple[str, ...]]
PHASES: Final[dict[str, tuple[tuple[str, str], ...]]]
COORDINATORS: Final[tuple[str, ...]]
COORDINATOR_BATCH_BYTES: Final[int]
COORDINATOR_TIMEOUT_S: Final[float]
DEVICE_LANES: Final[tuple[str, ...]]
LOG_LEVELS: Final[tuple[str, ...]]
HANDLE_BITS: Final[int]
MIN_NUMEL: Final[int]
PARTITION_BYTES: Final[int]
POOL_BYTES: Final[int]
WORKER_THREADS: Final[int]
STALL_WARNING_S: Final[float]
TIMEOUT_S: Final[float]
PEER_TIMEOUT_S: Final[float]
