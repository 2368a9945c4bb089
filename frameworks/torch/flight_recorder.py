"""The last calls of the groups of the backend casync, in the form that PyTorch's `torchfrtrace` reads.

    casync.torch.flight_recorder.dump("traces/rank")   # on each rank; then: torchfrtrace traces

With TORCH_FR_DUMP_TEMP_FILE (or NCCL's TORCH_NCCL_DEBUG_INFO_TEMP_FILE) in the environment, which is the beginning of
the files' names, a rank writes its file by itself, at its first operation that fails. TORCH_FR_BUFFER_SIZE calls are
kept (2,000).
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

__all__ = ["Entry", "Recorder", "Size", "dump", "recorder", "sizes_of"]

_LOG = logging.getLogger("casync")
_VERSION = "2.10"
_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_CALLS = 2000
_FRAMES = 8
_UNDESCRIBED = "undefined"
_INSIDE = (os.path.dirname(torch.distributed.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_BACKEND = "nccl"
"""torchfrtrace knows a list of backends by name, and casync is not in it."""

Size = tuple[tuple[int, ...], str]
"""The shape of a tensor, and its dtype."""


@dataclass(eq=False)
class Entry:
    """One call of a collective; frames are innermost first."""

    record: int
    group: str
    number: int
    """The call's number among those of the group, from 1."""
    kind: str
    inputs: Sequence[Size]
    outputs: Sequence[Size]
    frames: Sequence[tuple[CodeType, int]]
    began_ns: int
    ended_ns: int = 0
    has_failed: bool = False

    def is_over(self, error: BaseException | None) -> None:
        """Note that the call has ended, now."""
        self.has_failed = error is not None
        self.ended_ns = time.time_ns()

    def told(self) -> dict[str, Any]:
        """Return the entry as Flight Recorder writes it."""
        is_over = self.ended_ns > 0 and not self.has_failed
        return {
            "record_id": self.record,
            "pg_id": 0,
            "process_group": (self.group, _UNDESCRIBED),
            "collective_seq_id": self.number,
            "p2p_seq_id": 0,
            "op_id": self.number,
            "profiling_name": f"{_BACKEND}:{self.kind}",
            "time_created_ns": self.began_ns,
            "duration_ms": (self.ended_ns - self.began_ns) / 1e6 if is_over else None,
            "input_sizes": [list(size) for size, _ in self.inputs],
            "input_dtypes": [dtype for _, dtype in self.inputs],
            "output_sizes": [list(size) for size, _ in self.outputs],
            "output_dtypes": [dtype for _, dtype in self.outputs],
            "state": "completed" if is_over else "started",
            "time_discovered_started_ns": self.began_ns,
            "time_discovered_completed_ns": self.ended_ns if is_over else None,
            "retired": is_over,
            "timeout_ms": 0,
            "is_p2p": False,
            "frames": [{"name": code.co_name, "filename": code.co_filename, "line": at} for code, at in self.frames],
        }


class Recorder:
    """The last calls of all groups of this process. Any thread may call any method."""

    def __init__(self, calls: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=calls)
        self._lock = threading.Lock()
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._groups: dict[str, Sequence[int]] = {}
        self._rank = 0
        self._is_dumped = False

    def know(self, group: str, ranks: Sequence[int], rank: int) -> None:
        """Note a group of these ranks, as the world counts them. This process is `rank` of the world."""
        with self._lock:
            self._groups[group] = ranks
            self._rank = rank

    def begin(self, group: str, kind: str, inputs: Sequence[Size], outputs: Sequence[Size]) -> Entry:
        """Add and return an entry for a call that is made now."""
        frames = _frames(sys._getframe(1))
        with self._lock:
            number = self._numbers[group] = self._numbers.get(group, 0) + 1
            entry = Entry(self._count, group, number, kind, inputs, outputs, frames, time.time_ns())
            self._count += 1
            self._entries.append(entry)
        return entry

    def withdraw(self, entry: Entry) -> None:
        """The call was not made."""
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)
                self._numbers[entry.group] -= 1

    def dump(self, prefix: str) -> Path:
        """Write `prefix` followed by this process's rank."""
        with self._lock:
            groups, entries = dict(self._groups), list(self._entries)
        told = {
            "version": _VERSION,
            "pg_config": {
                name: {"name": name, "desc": _UNDESCRIBED, "ranks": str(list(ranks))} for name, ranks in groups.items()
            },
            "pg_status": {},
            "entries": [entry.told() for entry in entries],
        }
        path = Path(f"{prefix}{self._rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(told))
        return path

    def dump_if_wanted(self) -> None:
        """The first time, if the environment names a file."""
        prefix = next((os.environ[name] for name in _NAMES if os.environ.get(name)), None)
        with self._lock:
            due = prefix is not None and not self._is_dumped
            self._is_dumped = self._is_dumped or due
        if due and prefix is not None:
            self.dump(prefix)


def sizes_of(tensors: Iterable[torch.Tensor]) -> Sequence[Size]:
    """Return the shape and dtype of each tensor."""
    return [(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.").capitalize()) for tensor in tensors]


def _frames(frame: FrameType | None) -> Sequence[tuple[CodeType, int]]:
    """Return the frames of the caller, innermost first, without PyTorch's and our own."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _FRAMES:
        if not frame.f_code.co_filename.startswith(_INSIDE):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found


def calls_kept(environ: Mapping[str, str]) -> int:
    """Return how many calls are kept. If the environment gives no number, that is the default, with a warning."""
    given = environ.get("TORCH_FR_BUFFER_SIZE", "").strip()
    if not given or given.isdecimal():
        return int(given or _CALLS)
    _LOG.warning("TORCH_FR_BUFFER_SIZE=%s is no number of calls: the last %d are kept", given, _CALLS)
    return _CALLS


recorder = Recorder(calls_kept(os.environ))
dump = recorder.dump
