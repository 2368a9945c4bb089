"""The compiled core (casync_core/src/bindings). Numbers are those of casync/types.hpp; addresses are those of CPU
memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

class Counters(TypedDict):
    sent_bytes: int
    received_bytes: int
    sent_messages: int
    received_messages: int
    slot_bytes: int
    residual_bytes: int
    pool_peak: int

class Plan(TypedDict):
    topology: str
    codec: str
    partitions: int
    first_owner: int
    epoch: int
    reason: str
    until: int

class StateArray(TypedDict):
    values: NDArray[np.float32]
    per_element: bool
    shared: bool
    pending: bool

class CodecState(TypedDict):
    codec: str
    agreed: bool
    steps: int
    arrays: dict[str, StateArray]

class Session:
    """One rank's session. Errors are those of casync.errors; nothing waits with the GIL held."""

    def __init__(self, transport: Any, options: Mapping[str, Any], log: Callable[[str], object]) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def define(
        self,
        name: str,
        kind: int,
        dtype: int,
        op: int,
        rows: int,
        cols: int,
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        dims: str = "",
        compression: str = "none",
        topology: str = "auto",
        site: str = "",
    ) -> int: ...
    def set_optimizer(self, registration: int, lr: float, momentum: float = 0.0, nesterov: bool = False) -> None: ...
    def submit(self, registration: int, input: int, output: int, rows: int = 0, wake: bool = True) -> int: ...
    def done(self, handle: int) -> bool: ...
    def synchronize(self, handle: int) -> None: ...
    def synchronize_all(self, handles: Sequence[int]) -> None: ...
    def synchronize_gather(self, handle: int) -> tuple[bytearray, int]: ...
    def abort(self, why: str) -> None: ...
    def shutdown(self) -> None: ...
    def counters(self) -> Counters: ...
    def plan(self, registration: int) -> Plan | None: ...
    def plans(self) -> dict[str, Plan]: ...
    def residual_names(self) -> list[str]: ...
    def residual(self, name: str) -> NDArray[np.float32]: ...
    def set_residual(self, name: str, values: ArrayLike) -> None: ...
    def state_names(self) -> list[str]: ...
    def state(self, name: str) -> CodecState: ...
    def set_state(self, name: str, state: CodecState) -> None: ...
    def forget(self, name: str) -> None: ...

def codec_names() -> list[str]: ...
def check_codec(spec: str) -> str: ...
def check_compression(text: str) -> None: ...
def load_codec(path: str) -> str: ...
def isa() -> str: ...

class Simulation(TypedDict):
    step_s: float
    sent_bytes: float
    turns: int

class Replay(TypedDict):
    events: int
    actions: int
    difference: str

def simulate(
    gradients: Sequence[tuple[int, int]],
    host_of: Sequence[int],
    rate: float,
    latency_s: float,
    compression: str,
    topology: str,
    coordinator: str = "local",
    backward_s: float = 0.0,
    partition_bytes: float = ...,
    worker_threads: int = 1,
    seed: int = 1,
) -> Simulation: ...
def replay(path: str) -> Replay: ...
