"""What the framework adaptors share: the default session, names, ops, codecs, dtypes. No framework is imported here.

The default session is the one that `init()` opens and `hvd.rank()` speaks of; it is the only state of a process that
CaSync keeps outside a `Session`.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from casync.config import Config
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.rules import Rules
from casync.session import Session

__all__ = [
    "DTYPES",
    "GLOBAL_PROCESS_SET",
    "Adasum",
    "Average",
    "Codec",
    "Max",
    "Min",
    "OpKind",
    "ProcessSet",
    "Product",
    "Sum",
    "Terms",
    "check_rules",
    "codec_by_name",
    "codec_text",
    "init",
    "is_initialized",
    "require_global",
    "resolve_op",
    "rules_of",
    "session",
    "shutdown",
    "takes_momentum",
    "tensor_name",
]

# Horovod's numbers (casync/types.hpp: ReduceOp).
Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5

_OP_NAMES: Final = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class OpKind:
    """What an operation does (casync/types.hpp: OpKind)."""

    ALLREDUCE: Final = 0
    ALLGATHER: Final = 1
    BROADCAST: Final = 2
    BARRIER: Final = 3


_KIND_NAMES: Final = ("allreduce", "allgather", "broadcast", "barrier")

DTYPES: Final = {
    name: code
    for code, name in enumerate(
        ("float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
    )
}
"""dtype name -> the core's number (casync/types.hpp: DType)."""

_FLOATING: Final = frozenset(("float32", "float16", "bfloat16", "float64"))
_CASTS: Final = frozenset(("fp16", "bf16", "always(fp16)", "always(bf16)"))
_NAMES_PER_KIND: Final = 4096
_LOG: Final = logging.getLogger("casync")


# --- the default session ----------------------------------------------------------------------------------------------


class _Default:
    """Holder of the default session. `lock` guards opening and closing; reading `session` needs none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.opened = 0  # every rank opens as often, so this is a tag that all ranks share


_default = _Default()


def init(comm: Any = None, process_sets: Any = None, **settings: Any) -> None:
    """Open the default session; does nothing while it is open. Collective over the ranks.

    Args:
        comm: None for all ranks that MPI started, or a list of their ranks, this one among them.
        process_sets: not there yet; None.
        settings: fields of `casync.config.Config`, which win over the environment.

    Raises `CasyncError` if the processes of the job cannot form one world, with what to do.
    """
    if process_sets is not None:
        raise NotAvailableError("init(process_sets=...): process sets are not there yet; the world is the only set")
    if comm is not None and not (isinstance(comm, Sequence) and all(isinstance(rank, int) for rank in comm)):
        raise NotAvailableError(f"init(comm=...) takes a list of ranks; a {type(comm).__name__} is not understood yet")
    with _default.lock:
        if _default.session is not None:
            return
        config = Config.from_environment(os.environ, **settings)
        tag, _default.opened = _default.opened, _default.opened + 1
        _default.session = Session(config, tag=tag, peers=list(comm) if comm else None)


def shutdown() -> None:
    """Close the default session; does nothing if there is none. `init()` may be called again afterwards."""
    with _default.lock:
        if _default.session is not None:
            _default.session.shutdown()
            _default.session = None


def is_initialized() -> bool:
    """Whether the default session is open."""
    return _default.session is not None


def session() -> Session:
    """The default session. Raises `InvalidArgumentError` (a ValueError) before `init()`."""
    if _default.session is None:
        raise InvalidArgumentError("CaSync has not been initialized; use hvd.init().")
    return _default.session


# --- process sets: so far the world only ------------------------------------------------------------------------------


class ProcessSet:
    """A set of ranks. There is one so far, `global_process_set`: all of them."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(session().size))

    def size(self) -> int:
        """How many ranks there are."""
        return session().size

    def rank(self) -> int:
        """This process's rank."""
        return session().rank

    def included(self) -> bool:
        """Whether this process is in the set: always."""
        return True

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id=0, ranks={self.ranks if is_initialized() else None}, mpi_comm=None)"


GLOBAL_PROCESS_SET: Final = ProcessSet()


def require_global(process_set: Any) -> None:
    """Refuse any process set but the world."""
    if process_set is not GLOBAL_PROCESS_SET:
        raise NotAvailableError(
            f"process_set={process_set}: process sets are not there yet; leave it out for all ranks"
        )


# --- arguments that mean the same in every framework ------------------------------------------------------------------


def resolve_op(op: int | None, average: bool | None) -> int:
    """Horovod's two ways to say how to reduce, as one number. Neither given: Average."""
    if op is not None:
        if average is not None:
            raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
        if type(op) is not int or not 0 <= op < len(_OP_NAMES):
            raise InvalidArgumentError(f"op={op!r} is not one of {', '.join(_OP_NAMES)}")
        return op
    if average is not None:
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning, stacklevel=3
        )
        return Average if average else Sum
    return Average


@dataclass(frozen=True)
class Codec:
    """A codec by its spec, e.g. `Codec("terngrad(bits=2)")`. A plain string does as well, wherever one is accepted."""

    spec: str

    def __str__(self) -> str:
        return self.spec


def codec_text(compression: Any) -> str:
    """The spec of what a user gives as a codec: a string or a `Codec`.

    A path to a CompLL file (`"my.cll"`, `"my.cll(bits=4)"`, `"auto(my.cll, fp16)"`) is compiled and loaded at its
    first use.
    """
    spec = compression.spec if isinstance(compression, Codec) else compression
    if isinstance(spec, str):
        if ".cll" not in spec:
            return spec
        from casync.compll.plugin import resolve

        return re.sub(r"[^(),]+\.cll", lambda file: resolve(file[0]), spec)
    raise InvalidArgumentError(
        f"compression={compression!r} is not a codec: give a spec such as 'onebit', or one of hvd.Compression. A class "
        f"with compress() and decompress() cannot run inside the exchange; it has to be a codec of the core"
    )


def rules_of(compression: Any) -> Rules:
    """The rules that a user gives as `compression`: a mapping from patterns to codecs, or one codec for everything.

    Every codec is made once here, so that a mistake in a rule is an error at once, and on every rank.
    """
    from casync import _core

    table = compression if isinstance(compression, Mapping) else {"*": compression}
    rules = Rules.of({pattern: codec_text(codec) for pattern, codec in table.items()})
    for _, codec in rules.pairs:
        _core.check_compression(codec)
    return rules


def takes_momentum(codec: str) -> bool:
    """Whether the codec, or one of those in `auto(...)`, takes over the optimizer's momentum."""
    from casync import _core

    return bool(_core.takes_momentum(codec))


def codec_by_name(rules: Rules, name: str) -> str:
    """The codec of a tensor; rules see its name as `named_parameters` has it, without the `allreduce.` of ours."""
    return rules.codec_of(_plain(name))


def check_rules(owner: Session, rules: Rules, parameters: Collection[str]) -> None:
    """Raise `InvalidArgumentError` if a parameter has no codec; warn, on rank 0, of rules that decide for none."""
    names = [_plain(name) for name in parameters]
    for name in names:
        rules.codec_of(name)
    idle = rules.idle(names)
    if idle and owner.rank == 0:
        found = "; ".join(f"{pattern!r}, because {why}" for pattern, why in idle.items())
        _LOG.warning("rules of compression= that decide for none of the %d parameters: %s", len(names), found)


def _plain(name: str) -> str:
    return name.removeprefix(f"{_KIND_NAMES[OpKind.ALLREDUCE]}.")


def codec_for_dtype(spec: str, dtype: str) -> str:
    """`spec`, or "none" where a 16-bit cast has nothing to do: integers pass through it, as in Horovod.

    Every other codec is left for the core to accept or to refuse by name.
    """
    return "none" if spec in _CASTS and dtype not in _FLOATING else spec


def tensor_name(owner: Session, kind: int, name: str | None) -> str:
    """The name under which ranks meet: `allreduce.<name>`, or `allreduce.noname.<N>` for the N-th that has none.

    N starts again after 4096, so that a loop of unnamed operations is negotiated once and does not grow without end.
    """
    prefix = _KIND_NAMES[kind]
    if name is None:
        count = owner.counts.get(prefix, 0)
        owner.counts[prefix] = count + 1
        return f"{prefix}.noname.{count % _NAMES_PER_KIND}"
    return name if name.startswith(f"{prefix}.") else f"{prefix}.{name}"


class Terms(NamedTuple):
    """All that ranks must agree on for one tensor; also the key under which a registration is remembered.

    `shape` of an allgather leaves the first extent out: rows are each rank's own, and go with the submit.
    """

    name: str
    kind: int
    dtype: str
    shape: tuple[int, ...]
    op: int = Sum
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    compression: str = "none"
    topology: str = "auto"

    def register(self, owner: Session) -> int:
        """This tensor's registration; the core is asked at first use only. Raises `InvalidArgumentError` for bad
        terms.
        """
        known = owner.registrations.get(self)
        if known is not None:
            return known
        if self.kind == OpKind.ALLGATHER:
            rows, cols, dims = 0, math.prod(self.shape), f"({', '.join(['*', *map(str, self.shape)])})"
        else:
            rows, cols, dims = (self.shape or (1,))[0], math.prod(self.shape[1:]), str(tuple(self.shape))
        signature = {
            "kind": self.kind,
            "dtype": DTYPES[self.dtype],
            "op": self.op,
            "rows": rows,
            "cols": cols,
            "root": self.root,
            "prescale": self.prescale,
            "postscale": self.postscale,
            "dims": dims,
            "compression": codec_for_dtype(self.compression, self.dtype),
            "topology": self.topology,
        }
        return owner.define(self, self.name, signature)
