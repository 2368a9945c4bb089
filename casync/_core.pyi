"""The compiled core (casync_core/src/bindings). Numbers are those of casync/types.hpp; addresses are those of CPU
memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from casync.errors import CasyncError

class Plan(TypedDict):
    topology: str
    codec: str
    partitions: int
    first_owner: int
    epoch: int
    reason: str
    until: int
    predicted_s: float
    uncompressed_s: float
    payload_bytes: int
    measured_inter_s_per_byte: float
    measured_intra_s_per_byte: float
    measured_encode_s_per_byte: float
    measured_decode_s_per_byte: float

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

    def __init__(
        self, transport: Any, options: Mapping[str, Any], log: Callable[[int, str, dict[str, Any]], object]
    ) -> None:
        """`log(level, text, fields)`: level is a number of LOG_LEVELS, fields are those of casync/log.hpp. What it
        raises goes to sys.unraisablehook.
        """

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
        on_device: bool = False,
    ) -> int: ...
    def use(self, registration: int) -> bool: ...
    def knows(self, registration: int) -> bool: ...
    def set_optimizer(
        self, registration: int, lr: float, momentum: float = 0.0, nesterov: bool = False, loss_scale: float = 1.0
    ) -> None: ...
    @overload
    def submit(
        self,
        registration: int,
        input: int,
        output: int,
        rows: int,
        wake: bool,
        splits: Sequence[int] = ...,
        completion: None = ...,
        device: int = ...,
        stream: int = ...,
        /,
    ) -> int: ...
    @overload
    def submit(
        self,
        registration: int,
        input: int,
        output: int,
        rows: int,
        wake: bool,
        splits: Sequence[int],
        completion: Callable[[CasyncError | None, tuple[bytearray, list[int]] | None], object] | CompletionGroup,
        device: int = ...,
        stream: int = ...,
        /,
    ) -> None:
        """`completion(error, gathered)` is called once, on a thread of the session's own: `gathered` is what
        `synchronize_gather` returns. What it raises goes to sys.unraisablehook.
        """

    def add_device_code(self, device: int, common: bytes, spec: str, code: bytes) -> None: ...
    def poll(self, handle: int) -> bool: ...
    def synchronize(self, handle: int, stream: int = ..., /) -> None:
        """`stream`, of an operation on a device, waits for its result before it goes on."""

    def synchronize_all(self, handles: Sequence[int], stream: int = ...) -> None: ...
    def synchronize_gather(self, handle: int) -> tuple[bytearray, list[int]]: ...
    def abort(self, why: str) -> None: ...
    def close_in_child(self) -> None: ...
    def shutdown(self) -> None: ...
    def counters(self) -> dict[str, int]:
        """sent_bytes, received_bytes, sent_messages, received_messages, slot_bytes, residual_bytes, pool_peak"""

    def metrics(self) -> dict[str, Any]:
        """What casync.observe.metrics.metrics_of takes."""

    def plan(self, registration: int) -> Plan | None: ...
    def plans(self) -> dict[str, Plan]: ...
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...
    def fix_plans(self, plans: Mapping[str, Mapping[str, Any]]) -> None: ...
    def residual_names(self) -> list[str]: ...
    def residual(self, name: str) -> NDArray[np.float32]: ...
    def set_residual(self, name: str, values: ArrayLike) -> None: ...
    def state_names(self) -> list[str]: ...
    def state(self, name: str) -> CodecState: ...
    def set_state(self, name: str, state: Mapping[str, Any]) -> None: ...
    def forget(self, name: str) -> None: ...

class CompletionGroup:
    """Operations with one completion: `completion(error)` is called once, when all are over and `close` was called."""

    def __init__(self, session: Session, completion: Callable[[CasyncError | None], object]) -> None: ...
    def close(self) -> None: ...
    def wait(self) -> None:
        """Make progress until all are over, and call `completion` unless another thread does. After `close`."""

class Shortcuts:
    """What the names of a session's operations were last used with: a tensor, and the other terms that its registration
    follows from. One that is used so again, with a tensor of the same type, dtype, shape and device, takes one call.

    Tensors are those of a framework with DLPack's C exchange API (torch since 2.10); of others nothing is remembered.
    Submitted tensors are put into `pending` under their handles.
    """

    def __init__(self, core: Session, pending: dict[int, Any]) -> None: ...
    def clear(self) -> None: ...
    def remember(self, registration: int, name: str, tensor: Any, *terms: Any) -> None: ...
    def registration(self, name: str | None, tensor: Any, /, *terms: Any) -> int | None:
        """The registration to use again; None for another use than the last one, which may be a mistake."""

    def submit(self, name: str | None, tensor: Any, wake: bool, /, *terms: Any) -> int | None:
        """Submit the tensor, in place; its handle. None for another use than the last one, and for a tensor that is not
        contiguous. Raises what `Session.submit` does.
        """

c_api: Any
"""The table of casync/c_api.h, as a capsule `casync._core.c_api`."""

def c_session(session: Session) -> Any: ...
def publish(session: Session, process_set: int) -> None:
    """Have glue find the session by this number: `hold` of casync/c_api.h."""

def withdraw(process_set: int) -> None:
    """The opposite; returns when no glue holds the session."""

def codec_names() -> list[str]: ...
def cuda_facts() -> dict[str, Any]: ...
def nccl_facts(library: str) -> tuple[int, str]: ...
def cuda_uuid(number: int) -> str: ...
def crc32c(address: int, bytes: int) -> int: ...
def boot_id() -> str: ...
def connect_tcp(
    rank: int, sockets: Sequence[Sequence[int]], hosts: Sequence[int], session_tag: int, timeout_s: float
) -> Any: ...
def check_codec(spec: str) -> str: ...
def check_compression(text: str) -> None: ...
def interval_of(text: str) -> int: ...
def takes_momentum(text: str) -> bool: ...
def keeps_state(text: str) -> bool: ...
def rises(text: str) -> bool: ...
def device_codecs(text: str) -> list[str]: ...
def load_codec(path: str) -> str: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def force_isa(name: str) -> None: ...

class CodecInfo:
    @property
    def spec(self) -> str: ...
    @property
    def rounds(self) -> list[str]: ...
    @property
    def feedback(self) -> str: ...
    @property
    def feedback_decay(self) -> float: ...
    @property
    def identity(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def fixed_size(self) -> bool: ...
    @property
    def prescaled(self) -> bool: ...
    @property
    def merges_payloads(self) -> bool: ...
    @property
    def merged_element(self) -> str: ...
    @property
    def momentum(self) -> bool: ...

class StateDeclaration:
    @property
    def name(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def per_element(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def pending(self) -> bool: ...

class Codec:
    """The codec contract (casync/codec.hpp), for tests and benchmarks. A segment is anything with the attributes of
    casync.compll.conformance.contract.Segment; its arrays are used in place, and `run` sets its results.
    """

    def __init__(self, spec: str) -> None: ...
    @property
    def info(self) -> CodecInfo: ...
    def cut(self, shape: tuple[int, int], element: int) -> int: ...
    def bound(self, shape: tuple[int, int], dtype: int, range: tuple[int, int], round: int) -> int: ...
    def run(self, segments: Sequence[Any]) -> None: ...
    def state(self, shape: tuple[int, int]) -> list[StateDeclaration]: ...
    def start(self, shape: tuple[int, int], name_hash: int, index: int, values: NDArray[np.float32]) -> None: ...
    def agreed(self) -> int: ...
    def propose(self, segment: Any, values: NDArray[np.float32]) -> None: ...
    def agree(self, segment: Any, values: NDArray[np.float32]) -> None: ...
    def applies(self, shape: tuple[int, int], sequence: int) -> bool: ...

class SimulatedPlan(TypedDict):
    codec: str
    topology: str
    partitions: int
    predicted_s: float

class Simulation(TypedDict):
    step_s: float
    sent_bytes: float
    turns: int
    plans: list[SimulatedPlan]

class Replay(TypedDict):
    events: int
    actions: int
    difference: str

def simulate(
    gradients: Sequence[tuple[int, int]],
    host_of: Sequence[int],
    between: tuple[float, float, float],
    within: tuple[float, float, float],
    compression: str,
    topology: str,
    coordinator: str = "local",
    backward_s: float = 0.0,
    partition_bytes: float = ...,
    partitions: int | None = None,
    pool_bytes: int = ...,
    worker_threads: int = 1,
    codecs: Mapping[str, tuple[float, float, float, float]] = ...,
    device_codecs: Mapping[str, tuple[float, float, float, float]] = ...,
    copy_rate: float | None = None,
    seed: int = 1,
    timeline: str = "",
    plans: Sequence[Mapping[str, Any]] = ...,
) -> Simulation: ...

class ModelPlan(TypedDict):
    step_s: float
    descent_s: float
    options_s: float
    bound_s: float
    alone_s: float
    uniform: dict[str, float]
    ways: list[dict[str, Any]]
    bookings: int

def plan_model(
    gradients: Sequence[tuple[int, int, float]],
    host_of: Sequence[int],
    inter: tuple[float, float, float],
    intra: tuple[float, float, float],
    codecs: Mapping[str, tuple[float, float, float, float]],
    device_codecs: Mapping[str, tuple[float, float, float, float]],
    copy_s_per_byte: float,
    processors: float,
    on_device: bool,
    compression: str,
) -> ModelPlan: ...
def phase_lists(executed: bool = True) -> list[str]: ...
def why_not_phases(text: str) -> str: ...
def replay(path: str) -> Replay: ...
