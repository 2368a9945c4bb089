"""Finds the backward pass that a call of a process group belongs to, and who sends it there. See `c10d`.

Gradients are what DDP's reducer and FSDP send while a backward pass runs. That is read off the frames of Python: the
reducer is C++, and stands directly on autograd's engine.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from types import FrameType
from typing import NamedTuple, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Sender", "WithData", "backward_pass", "is_gone", "raise_after_backward", "sender_of"]

_FRAMES = 64  # to look at
_NEAR = 6  # the frames of torch between its `Join` and this adaptor
_KEPT = 16  # backward passes of which works are remembered; those that were broken off stay until then


def _file(*parts: str) -> str:
    return os.path.join(os.path.dirname(torch.__file__), *parts)


_ENGINE = _file("autograd", "graph.py")
_FUNCTION = _file("autograd", "function.py")
_CHECKPOINT = _file("utils", "checkpoint.py")
_FSDP = _file("distributed", "fsdp", "_fully_shard", "_fsdp_param_group.py")
_JOIN = _file("distributed", "algorithms", "join.py")
_ALLREDUCE = "allreduce"


class Sender(NamedTuple):
    """The sender of a gradient."""

    key: Hashable
    """The object that sends, for as long as it lives; None: it is not known."""
    turn: Hashable
    """The backward pass."""
    is_reducer: bool = False
    """Whether it is DDP's own reducer, with no hook of Python's."""

    @property
    def may_move(self) -> bool:
        """Whether it may send other gradients in this place after its first pass: DDP's reducer does, and with it
        whatever hook it calls.
        """
        return self.is_reducer or self.key is None


def backward_pass() -> int:
    """The number of the backward pass that this thread runs; -1 outside."""
    number: int = torch._C._current_graph_task_id()
    return number


def sender_of(kind: str, tensor: torch.Tensor) -> Sender | None:
    """Return who sends `tensor` in a call of `kind` that is made now; None if it is no gradient.

    What a checkpoint computes again is forward, and what a function of autograd sends in its backward is the gradient
    of an activation: both are as exact as the forward pass.
    """
    turn = backward_pass()
    if turn < 0:
        return None
    frame = first = _inside(sys._getframe(1))
    for _ in range(_FRAMES):
        if frame is None or frame.f_code.co_filename == _ENGINE:
            break
        if frame.f_code.co_filename == _FSDP and "self" in frame.f_locals:
            return Sender(weakref.ref(frame.f_locals["self"]), turn)
        if frame.f_code.co_filename in (_FUNCTION, _CHECKPOINT):
            return None
        frame = frame.f_back
    if frame is not first:
        return Sender(None, turn)
    if kind != _ALLREDUCE:
        return None  # C++ code of autograd
    return Sender(StorageWeakRef(tensor.untyped_storage()), turn, is_reducer=True)


def _inside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is none of this adaptor's."""
    here = os.path.dirname(__file__)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) == here:
        frame = frame.f_back
    return frame


class WithData:
    """Which ranks of a group have data still, under `with ddp.join():`. All of them count these, in one number that
    they sum, before each step. A rank that has none makes its calls outside of a backward pass.
    """

    def __init__(self) -> None:
        self._count: torch.Tensor | None = None  # the last one; 0 at the end of the block
        self._sum: _Ends | None = None  # of it

    def hear(self, tensors: Sequence[torch.Tensor], work: _Ends) -> None:
        """Take note of a sum that is under way, if it is such a count."""
        if len(tensors) != 1 or tensors[0].numel() != 1:
            return
        frame = _inside(sys._getframe(1))
        for _ in range(_NEAR):
            if frame is None:
                return
            if frame.f_code.co_filename == _JOIN:
                self._count, self._sum = tensors[0].detach(), work
                return
            frame = frame.f_back

    def is_some(self, size: int) -> bool:
        """Whether some ranks have data still, and not all."""
        if self._count is None or self._sum is None:
            return False
        self._sum.progress()
        return 0 < int(self._count.item()) < size


def is_gone(key: Hashable) -> bool:
    """Whether the object of a `Sender` lives no more."""
    if isinstance(key, StorageWeakRef):
        expired: bool = key.expired()
        return expired
    return isinstance(key, weakref.ref) and key() is None


# --- errors -----------------------------------------------------------------------------------------------------------


class _Ends(Protocol):
    """A `GroupWork`."""

    is_reducer: bool

    @property
    def has_callbacks(self) -> bool: ...
    def progress(self) -> None: ...
    def settle(self) -> BaseException | None: ...
    def untold(self) -> BaseException | None: ...


_works: OrderedDict[int, list[_Ends]] = OrderedDict()
_lock = threading.Lock()


def raise_after_backward(work: _Ends) -> None:
    """If a backward pass runs on this thread, have it raise the error of `work` at its end, unless somebody has heard
    of it. C++ could not say which error it was.
    """
    number = backward_pass()
    if number < 0:
        return
    with _lock:
        works = _works.setdefault(number, [])
        is_first = not works
        works.append(work)
        while len(_works) > _KEPT:
            _works.popitem(last=False)
    if is_first:
        _when_through(lambda: _before_the_end(number))


def _before_the_end(number: int) -> None:
    """All gradients are there, and DDP would now wait for its futures. This thread makes progress meanwhile. A callback
    that has failed is told here, because DDP would say that it has no tensor.
    """
    for work in list(_works.get(number, ())):
        if work.has_callbacks:
            error = work.settle()
            if error is not None:
                raise error
        elif work.is_reducer:
            work.progress()
    _when_through(lambda: _at_the_end(number))


def _at_the_end(number: int) -> None:
    with _lock:
        works = _works.pop(number, [])
    for work in works:
        error = work.untold()
        if error is not None:
            raise error


def _when_through(act: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(act)
