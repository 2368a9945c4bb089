"""Codec state of a whole job in a folder: what `state_dict()` holds of one rank, for all ranks at once.

    casync.save_state("checkpoint")      # on every rank, between steps, beside the model's own checkpoint
    casync.load_state("checkpoint")      # on every rank, after init(), before or after optimizers are made

The folder holds a file per rank and one that says which belong together, written last: who is interrupted leaves the
checkpoint that was there before. It may be on a file system that all hosts share, or each host may have its own.

On as many ranks as it was saved on, training goes on bit for bit. On another number each rank gets the mean over the
old ranks of what each kept for itself, so that the mean over all of what is still to be sent stays what it was; what
the ranks share stays as it is, and gradients are planned anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from casync.errors import InvalidArgumentError, StorageError
from casync.observe.metrics import OWN
from casync.plan import plans as plan
from casync.session import default
from casync.session.gather_bytes import gather_bytes
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature, Sum

__all__ = ["load_state", "save_state"]

_FORMAT = "casync-state"
_VERSION = 1
_MANIFEST = "casync.json"
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Manifest:
    """Which files belong together, and what is in them."""

    save: str
    size: int
    tensors: dict[str, dict[str, Any]]  # name -> whether it has a residual, its codec, steps and arrays
    plans: dict[str, plan.GradientPlan]
    lengths: dict[str, int]
    """How many numbers each array of a shard has, by its key. Earlier checkpoints do not say it."""
    fallbacks: dict[str, str]
    """By tensor, the codec that a monitor has put in the place of the program's."""
    unsent: list[str]
    """Tensors of `fallbacks` whose uncompressed step is still to come."""

    def to_json(self) -> str:
        plans = {name: asdict(each) for name, each in self.plans.items()}
        content = {"format": _FORMAT, "version": _VERSION, "save": self.save, "size": self.size}
        content |= {"tensors": self.tensors, "plans": plans, "lengths": self.lengths}
        content |= {"fallbacks": self.fallbacks, "unsent": self.unsent}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> _Manifest:
        content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT or content.get("version") != _VERSION:
            raise InvalidArgumentError(f"{folder / _MANIFEST} is not a state of version {_VERSION} of CaSync")
        save, size = content["save"], content["size"]
        if not isinstance(save, str) or not save.isalnum():
            raise _damaged(folder / _MANIFEST, f"save={save!r} is not the name of a save")
        if type(size) is not int or size < 1:
            raise _damaged(folder / _MANIFEST, f"size={size!r} is not a number of ranks")
        if more := [path.name for path in folder.glob(_shard(folder, save, "*").name) if _rank_of(path) >= size]:
            raise _damaged(folder / _MANIFEST, f"size={size} is too small, as {more[0]} is of the same save")
        plans = {name: plan.GradientPlan(**each) for name, each in content["plans"].items()}
        lengths, fallbacks = content.get("lengths", {}), content.get("fallbacks", {})
        return cls(save, size, content["tensors"], plans, lengths, fallbacks, content.get("unsent", []))

    def keys(self) -> Iterator[str]:
        """Yield the keys of the arrays that each shard has."""
        for tensor, what in self.tensors.items():
            if what["residual"]:
                yield _residual(tensor)
            if what["state"] is not None:
                yield from (_array(tensor, name) for name in what["state"]["arrays"])


def save_state(folder: str | os.PathLike[str], session: Session | None = None) -> None:
    """Write the residuals, codec state and plans of all ranks into `folder`, in place of what was saved there before.

    Collective: all ranks call it between steps, when nothing is outstanding. `session`: None takes the default one.
    Raises `StorageError` on every rank if one of them cannot write, with its reason; the folder's earlier state is then
    still whole. `InvalidArgumentError` for a folder that is no path.
    """
    owner = default.session() if session is None else session
    if owner.has_outstanding:
        raise InvalidArgumentError("save_state() was called while operations are outstanding: synchronize them first")
    target = _path(folder)
    save = _of_rank_0(owner, secrets.token_hex(8).encode()).decode()

    def write_shard() -> dict[str, int]:
        target.mkdir(parents=True, exist_ok=True)
        with _whole(_shard(target, save, owner.rank), "new") as path, path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # one of them might be called allow_pickle
        return {key: len(values) for key, values in arrays.items()}

    arrays = _arrays_of(owner)
    residuals = _lengths(owner, {key: values for key, values in arrays.items() if _is_residual(key)})
    for key, length in residuals.items():  # a rank that has loaded another one's checkpoint has none of its own yet
        arrays.setdefault(key, np.zeros(length, np.float32))
    lengths = _together(owner, write_shard)
    fallbacks, unsent = dict(owner.codec_states.fallbacks), sorted(owner.codec_states.unsent)
    manifest = _Manifest(save, owner.size, _described(owner, residuals), owner.plans(), lengths, fallbacks, unsent)

    def write_manifest() -> None:
        if owner.world.local_rank == 0:  # of each host, should the folder not be shared
            with _whole(target / _MANIFEST, f"{save}-{owner.rank:05}") as path:
                path.write_text(manifest.to_json(), encoding="utf-8")

    _together(owner, write_manifest)
    if owner.world.local_rank == 0:
        for old in (*target.glob("casync-*.npz"), *target.glob("casync*.partial")):
            if save not in old.name:
                with contextlib.suppress(OSError):  # what cannot be removed does no harm
                    old.unlink()


def load_state(folder: str | os.PathLike[str], session: Session | None = None) -> None:
    """Put back what `save_state` wrote into `folder`. Collective: all ranks call it, when nothing is outstanding.

    Optimizers may be made before or after it; their own `load_state_dict()` comes first. `session`: None takes the
    default one. Raises `StorageError` on every rank if one of them cannot read, or finds damage, with its reason; what
    is kept in this session then stays. `InvalidArgumentError` for a folder that is no path.
    """
    owner = default.session() if session is None else session
    if owner.has_outstanding:
        raise InvalidArgumentError("load_state() was called while operations are outstanding: synchronize them first")
    source = _path(folder)
    manifest = _together(owner, lambda: _Manifest.read(source))
    saves = [each.decode() for each in _gathered(owner, manifest.save.encode())]
    if len(set(saves)) > 1:
        other = next(rank for rank, each in enumerate(saves) if each != saves[0])
        raise StorageError(
            f"{source} holds another state on rank {other} than on rank 0: give all ranks what one save_state() wrote"
        )
    if manifest.size == owner.size:
        arrays = _together(owner, lambda: _read_shard(source, manifest, owner.rank))
    else:
        arrays = _means(owner, source, manifest)
    _together(owner, lambda: _restore(owner, arrays, manifest))
    if manifest.size == owner.size:
        owner.fix_plans(manifest.plans)


def _restore(owner: Session, arrays: Mapping[str, np.ndarray[Any, Any]], manifest: _Manifest) -> None:
    kept = owner.codec_states
    kept.forget(kept.names() | kept.fallbacks.keys())
    for tensor, what in manifest.tensors.items():
        if what["residual"]:
            kept.set_residual(tensor, arrays[_residual(tensor)])
        if what["state"] is not None:
            filled = {
                name: {**of, "values": arrays[_array(tensor, name)]} for name, of in what["state"]["arrays"].items()
            }
            kept.set_state(tensor, {**what["state"], "arrays": filled})
    kept.fall_back(manifest.fallbacks, manifest.unsent)
    kept.note_loaded({*manifest.tensors, *manifest.fallbacks})


def _means(owner: Session, source: Path, manifest: _Manifest) -> dict[str, np.ndarray[Any, Any]]:
    """Return the mean over the old ranks of what each kept for itself; of what they shared, rank 0's."""

    def read() -> dict[str, np.ndarray[Any, Any]]:
        sums: dict[str, np.ndarray[Any, Any]] = {}
        for rank in range(owner.rank, manifest.size, owner.size):
            for key, values in _read_shard(source, manifest, rank).items():
                shared = _is_shared(manifest, key)
                part = values.astype(np.float64) / (1 if shared else manifest.size)
                if not shared or rank == 0:
                    sums[key] = sums[key] + part if key in sums else part
        return sums

    mine = _together(owner, read)
    means = {}
    for key, length in sorted(_lengths(owner, mine).items()):
        total = np.ascontiguousarray(mine.get(key, np.zeros(length)))
        terms = OpSignature(f"{OWN}state.{key}", OpKind.ALLREDUCE, "float64", total.shape, Sum)
        address = total.ctypes.data
        owner.synchronize(owner.submit(owner.register(terms), address, address, total))
        means[key] = total.astype(np.float32)
    return means


def _lengths(owner: Session, mine: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    known = json.dumps({key: len(values) for key, values in mine.items()}).encode()
    return {key: length for each in _gathered(owner, known) for key, length in json.loads(each).items()}


# --- what is in the files ---------------------------------------------------------------------------------------------


def _path(folder: str | os.PathLike[str]) -> Path:
    try:
        return Path(folder)
    except TypeError:
        raise InvalidArgumentError(f"folder={folder!r}: it must be a path, a string or a pathlib.Path") from None


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(f"{path} is damaged: {what}. Load an earlier checkpoint, or go on without its codec state")


def _shard(folder: Path, save: str, rank: int | str) -> Path:
    return folder / f"casync-{save}-{rank:0>5}.npz"


def _rank_of(shard: Path) -> int:
    number = shard.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _residual(tensor: str) -> str:
    return f"residual/{tensor}"


def _is_residual(key: str) -> bool:
    return key.startswith(_residual(""))


def _array(tensor: str, name: str) -> str:
    return f"state/{name}/{tensor}"


def _is_shared(manifest: _Manifest, key: str) -> bool:
    if _is_residual(key):
        return False
    _, name, tensor = key.split("/", 2)
    return bool(manifest.tensors[tensor]["state"]["arrays"][name]["shared"])


def _arrays_of(owner: Session) -> dict[str, np.ndarray[Any, Any]]:
    kept = owner.codec_states
    arrays = {_residual(tensor): kept.residual(tensor) for tensor in kept.residual_names()}
    for tensor in kept.state_names():
        for name, of in kept.state(tensor)["arrays"].items():
            arrays[_array(tensor, name)] = of["values"]
    return arrays


def _described(owner: Session, residuals: Collection[str]) -> dict[str, dict[str, Any]]:
    kept = owner.codec_states
    states = kept.state_names()
    tensors: dict[str, dict[str, Any]] = {}
    for tensor in sorted({key.removeprefix(_residual("")) for key in residuals} | states):
        described = None
        if tensor in states:
            state = kept.state(tensor)
            arrays = {
                name: {key: value for key, value in of.items() if key != "values"}
                for name, of in state["arrays"].items()
            }
            described = {**state, "arrays": arrays}
        tensors[tensor] = {"residual": _residual(tensor) in residuals, "state": described}
    return tensors


def _read_shard(folder: Path, manifest: _Manifest, rank: int) -> dict[str, np.ndarray[Any, Any]]:
    path = _shard(folder, manifest.save, rank)
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    for key in manifest.keys():
        if (what := _fault_of(key, arrays.get(key), manifest.lengths.get(key))) is not None:
            raise _damaged(path, what)
    return arrays


def _fault_of(key: str, values: np.ndarray[Any, Any] | None, length: int | None) -> str | None:
    """Say what is wrong with an array of a shard; None if nothing is. `length` is None if the manifest lacks it."""
    if values is None:
        return f"it has no array {key}"
    if values.ndim != 1 or values.dtype.kind != "f":
        return f"array {key} is of dtype {values.dtype} and shape {values.shape}, and should be a row of floats"
    if length is not None and len(values) != length:
        return f"array {key} has {len(values)} numbers, and {_MANIFEST} says {length}"
    if _is_residual(key) and not np.isfinite(values).all():
        return f"array {key} has NaN or infinity, which would go into every later step"
    return None


class _whole:
    """A file that is there whole or not at all: `with _whole(target, writer) as path` is written under another name.

    `writer` tells those that may write it at once. The number of a process does not: that of each container is 1.
    """

    def __init__(self, target: Path, writer: str) -> None:
        self._target = target
        self._partial = target.with_name(f"{target.name}.{writer}.partial")

    def __enter__(self) -> Path:
        return self._partial

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                self._partial.replace(self._target)
        finally:
            self._partial.unlink(missing_ok=True)


# --- what all ranks do together ---------------------------------------------------------------------------------------


def _gathered(owner: Session, data: bytes) -> list[bytes]:
    return [bytes(each) for each in gather_bytes(owner, "casync.state", data)]


def _of_rank_0(owner: Session, data: bytes) -> bytes:
    return _gathered(owner, data)[0]


def _together(owner: Session, act: Callable[[], _T]) -> _T:
    """Runs `act` on every rank; if it fails on one, all raise, and name that rank."""
    result: list[_T] = []
    failure: Exception | None = None
    try:
        result.append(act())
    except Exception as error:  # whatever a damaged file makes of its reader: the others must hear of it
        failure = error
    said = f"{type(failure).__name__}: {failure}" if failure else ""
    texts = _gathered(owner, said.encode(errors="backslashreplace"))  # a path may hold what is no letter
    failed = [f"rank {rank}: {text.decode()}" for rank, text in enumerate(texts) if text]
    if failed:
        raise StorageError("; ".join(failed)) from failure
    return result[0]
