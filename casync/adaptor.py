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
from casync.errors import InvalidArgumentError
from casync.process_sets import ProcessSet, ProcessSets, is_communicator, ranks_of
from casync.rules import Rules
from casync.session import HANDLE_BITS, Session
from casync.world import everyone

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
    "add_process_set",
    "check_rules",
    "checked",
    "codec_by_name",
    "codec_text",
    "init",
    "is_cast",
    "is_initialized",
    "keeps_state",
    "owner_of",
    "process_sets",
    "remove_process_set",
    "resolve_op",
    "rules_of",
    "session",
    "session_of",
    "shutdown",
    "takes_momentum",
    "tensor_name",
]

# Horovod's numbers (casync/types.hpp: ReduceOp).
Average: Final = 0
"""`op=`: the sum over all ranks divided by their number. Of integers it truncates towards zero."""
Sum: Final = 1
"""`op=`: the sum over all ranks."""
Adasum: Final = 2
"""`op=`: gradients add up as far as they differ in direction, and are averaged as far as they do not. Float tensors."""
Min: Final = 3
"""`op=`: of each element the smallest; uncompressed."""
Max: Final = 4
"""`op=`: of each element the largest; uncompressed."""
Product: Final = 5
"""`op=`: of each element the product; uncompressed."""

_OP_NAMES: Final = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class OpKind:
    """What an operation does (casync/types.hpp: OpKind)."""

    ALLREDUCE: Final = 0
    ALLGATHER: Final = 1
    BROADCAST: Final = 2
    BARRIER: Final = 3
    REDUCESCATTER: Final = 4
    ALLTOALL: Final = 5
    JOIN: Final = 6


_KIND_NAMES: Final = ("allreduce", "allgather", "broadcast", "barrier", "reducescatter", "alltoall", "join")

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
_NOT_INITIALIZED: Final = "CaSync has not been initialized; use hvd.init()."
_LOG: Final = logging.getLogger("casync")


# --- the default session ----------------------------------------------------------------------------------------------


class _Default:
    """Holder of the default session. `lock` guards opening and closing; reading `session` needs none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.sets: ProcessSets | None = None
        # How often each world was opened, by its ranks: they share this number, whatever other ranks have done.
        self.opened: dict[tuple[int, ...], int] = {}

    def next_tag(self, peers: Sequence[int] | None) -> int:
        ranks = everyone(os.environ) if peers is None else tuple(peers)
        tag = self.opened.get(ranks, 0)
        self.opened[ranks] = tag + 1
        return tag


_default = _Default()


def init(comm: Any = None, process_sets: Any = None, **settings: Any) -> None:
    """Open the default session; while it is open, only take `process_sets` into use, once. Collective over the ranks.

    Args:
        comm: None for all ranks that MPI started, or a list of their ranks, this one among them, or an mpi4py
            communicator. Ranks that are not in it need not call.
        process_sets: a list of `ProcessSet` for operations among some of the ranks, the same on all ranks; or
            "dynamic", to add them later: it sets HOROVOD_DYNAMIC_PROCESS_SETS=1.
        settings: fields of `casync.config.Config`, which win over the environment.

    Raises `CasyncError` if the processes of the job cannot form one world, with what to do. After a ValueError for two
    sets of the same ranks the session is open, as in Horovod: call again with a list that has them once.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise InvalidArgumentError(f"process_sets={process_sets!r}: give a list of ProcessSet, or 'dynamic'")
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    peers = ranks_of(comm) if comm else None
    wanted = None if process_sets is None else list(process_sets)
    with _default.lock:
        sets, is_new = _default.sets, _default.sets is None
        if sets is None:
            config = Config.from_environment(os.environ, **settings)
            opened = Session(config, tag=_default.next_tag(peers), peers=peers)
            sets = ProcessSets(opened, GLOBAL_PROCESS_SET)
            GLOBAL_PROCESS_SET.mpi_comm = comm if is_communicator(comm) else None
        try:
            if wanted is not None and not sets.is_started:
                sets.start(wanted)
        except BaseException:
            if is_new:
                sets.close()
            raise
        _default.session, _default.sets = sets.sessions[0], sets
        if wanted is not None:
            sets.take(wanted)


def shutdown() -> None:
    """Close the default session; does nothing if there is none. `init()` may be called again afterwards."""
    with _default.lock:
        if _default.sets is not None:
            _default.sets.close()
            _default.session = _default.sets = None


def is_initialized() -> bool:
    """Whether the default session is open."""
    return _default.session is not None


def session() -> Session:
    """The default session. Raises `InvalidArgumentError` (a ValueError) before `init()`."""
    if _default.session is None:
        raise InvalidArgumentError(_NOT_INITIALIZED)
    return _default.session


# --- process sets -----------------------------------------------------------------------------------------------------


GLOBAL_PROCESS_SET: Final = ProcessSet(())
"""All ranks: what every `process_set=` is by default, and `casync.torch.global_process_set`. Its number is 0."""
GLOBAL_PROCESS_SET.process_set_id, GLOBAL_PROCESS_SET.ranks = 0, None


def process_sets() -> ProcessSets:
    """The sets of the default session."""
    if _default.sets is None:
        raise InvalidArgumentError(_NOT_INITIALIZED)
    return _default.sets


def session_of(process_set: Any) -> Session:
    """This rank's session over `process_set`. Raises `InvalidArgumentError` on a rank that is not in the set."""
    if process_set is GLOBAL_PROCESS_SET:
        return _default.session or session()  # which raises: one call less for each operation
    return checked(process_set).member_session()


def checked(process_set: Any) -> ProcessSet:
    """`process_set`, which is in use. Raises `InvalidArgumentError` for anything else."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is not a ProcessSet")
    process_set.check_in_use()
    return process_set


def owner_of(handle: int) -> Session:
    """The session that gave out `handle`."""
    number = handle >> HANDLE_BITS
    if number == 0:
        return _default.session or session()  # as in session_of
    owner = process_sets().sessions.get(number)
    if owner is None:
        raise InvalidArgumentError(f"handle {handle} is of process set {number}, which was removed")
    return owner


def add_process_set(process_set: Any) -> ProcessSet:
    """Take `process_set`, a `ProcessSet` or a list of ranks, into use after `init()`; returns the set. Collective over
    all ranks.

    Raises ValueError without HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`, and if a set of the same
    ranks is in use.
    """
    _require_dynamic("adding")
    return process_sets().add(process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set))


def remove_process_set(process_set: ProcessSet) -> bool:
    """End the use of `process_set`, which was added; what is outstanding in it ends with an error. Collective over all
    ranks.

    False if the set is not in use, or holds all ranks.
    """
    _require_dynamic("removing")
    return process_sets().remove(process_set)


def _require_dynamic(what: str) -> None:
    if not session().config.dynamic_process_sets:
        raise InvalidArgumentError(
            f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1, or call hvd.init(process_sets='dynamic'), to allow {what} process "
            "sets after hvd.init()"
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

        # No callback: casyncrun names the innermost line outside CaSync, which would be one of re's.
        for file in re.findall(r"[^(),]+\.cll", spec):
            spec = spec.replace(file, resolve(file), 1)
        return spec
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


def is_cast(codec: str) -> bool:
    """Whether the codec is `fp16` or `bf16`, which keep nothing."""
    return codec in _CASTS


def keeps_state(codec: str) -> bool:
    """Whether the codec, or one that `auto` may choose, keeps something of a gradient between steps."""
    from casync import _core

    return bool(_core.keeps_state(codec))


def codec_by_name(rules: Rules, name: str) -> str:
    """The codec of a tensor; rules see its name as `named_parameters` has it, without the `allreduce.` or
    `reducescatter.` of ours."""
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
    for kind in (OpKind.ALLREDUCE, OpKind.REDUCESCATTER):
        name = name.removeprefix(f"{_KIND_NAMES[kind]}.")
    return name


def codec_for_dtype(spec: str, dtype: str) -> str:
    """`spec`, or "none" where a 16-bit cast has nothing to do: integers pass through it, as in Horovod.

    Every other codec is left for the core to accept or to refuse by name.
    """
    return "none" if is_cast(spec) and dtype not in _FLOATING else spec


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

    `shape` of an allgather or an alltoall leaves the first extent out: rows are each rank's own, and go with the
    submit.
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
        if self.kind in (OpKind.ALLGATHER, OpKind.ALLTOALL):
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
