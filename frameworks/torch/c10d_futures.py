"""The futures of a process group's calls, and the threads that run their callbacks: see `c10d`.

A callback may call collectives and wait for them, as PyTorch's `powerSGD_hook` does. So none runs on the thread that
ends operations. What a callback calls is known by the call whose future it belongs to (`Scope`), because threads of
different ranks come in different orders.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

__all__ = ["GroupFuture", "Scope", "current_scope", "run_aside"]

_LOG = logging.getLogger("casync")
_IDLE_SECONDS = 5.0
_PAUSE_SECONDS = 2e-5


class Scope:
    """One run of a callback: its place among all callbacks, alike on all ranks, and how often it has called what."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls: dict[Hashable, int] = {}


class _Current(threading.local):
    scope: Scope | None = None


_current = _Current()


def current_scope() -> Scope | None:
    """The callback that this thread runs; None: it runs none."""
    return _current.scope


class GroupFuture(torch.futures.Future[Any]):
    """The future that `get_future()` of a call returns, and that `then` of such a future returns.

    C++ takes the value of every future for tensors, also where Python's `set_exception` has put an exception. So after
    a failure C++ finds the call's tensors, and Python the error.
    """

    def __init__(self, path: str, devices: Sequence[Any], progress: Callable[[], object] | None = None) -> None:
        """`path`: see `Scope`. `progress`: who waits calls it meanwhile; it returns when the call has ended."""
        super().__init__(devices=list(devices) or None)
        self._path = path
        self._devices = devices
        self._progress = progress
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = []  # None: they run at once
        self._children: list[GroupFuture] = []
        self._numbers = itertools.count()
        self.is_told = False
        """Whether somebody has been given the error."""

    def end(self, value: Any, error: BaseException | None) -> None:
        """End the future, once. Callbacks run on threads of their own."""
        self._value, self._error = value, error
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
            self._over.set()
        run_aside(lambda: self._publish(callbacks))

    def _publish(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Tell C++, and call the callbacks."""
        if self._error is None:
            super().set_result(self._value)
        else:
            super()._set_unwrap_func(self._raise)
            super().set_result(_Failed(self._value, self._error))
        for callback in callbacks:
            callback()

    def _raise(self, _: Any) -> None:
        assert self._error is not None
        self.is_told = True
        raise self._error from None

    def wait(self) -> Any:
        if self._progress is not None:
            self._progress()
        self._over.wait()
        return self.value()

    def value(self) -> Any:
        if not self._over.is_set():
            raise RuntimeError("value() of a future that is not done: wait() for it")
        if self._error is not None:
            self._raise(None)
        if self._devices and self._progress is None:
            super().wait()  # the current stream comes after what the callback has begun
        return self._value

    def done(self) -> bool:
        return self._over.is_set()

    def reach_cpp(self) -> None:
        """Wait until C++ knows of the end too, which a thread of its own tells it: C++ may take the value right after
        a wait for the call.
        """
        while not super().done():
            time.sleep(_PAUSE_SECONDS)

    def then(self, callback: Callable[[Any], Any]) -> Any:
        child = GroupFuture(f"{self._path}.{next(self._numbers)}", self._devices)
        self._children.append(child)
        self._attach(lambda: child._take(callback, self))
        return child

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        child = self.then(callback)

        def tell() -> None:
            if child._error is not None:
                _LOG.error("a callback of a future has failed", exc_info=child._error)

        child._attach(tell)

    @property
    def has_callbacks(self) -> bool:
        return bool(self._children)

    def _attach(self, act: Callable[[], None]) -> None:
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(act)
                return
        run_aside(act)

    def _take(self, callback: Callable[[Any], Any], parent: GroupFuture) -> None:
        """Become what `callback` returns or raises."""
        value, error = parent._value, None
        before, _current.scope = _current.scope, Scope(self._path)
        try:
            value = callback(parent)
        except BaseException as raised:
            error = raised
        finally:
            _current.scope = before
        self.end(value, error)

    def settle(self) -> BaseException | None:
        """Wait until this and all that hangs on it has ended; returns the first error of it."""
        if self._progress is not None:
            self._progress()
        self._over.wait()
        errors = [self._error, *(child.settle() for child in self._children)]
        return next((error for error in errors if error is not None), None)


class _Failed:
    """The value of a future that has failed. C++ finds the tensors in it; any use of it in Python raises the error."""

    def __init__(self, tensors: Any, error: BaseException) -> None:
        self.__dict__.update(_tensors=tensors, _error=error)

    def __reduce__(self) -> tuple[Any, ...]:  # torch pickles a value to find its tensors
        return _Failed, (self._tensors, None)

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def __getitem__(self, index: Any) -> Any:
        raise self._error

    def __iter__(self) -> Any:
        raise self._error


# --- threads ----------------------------------------------------------------------------------------------------------


class _Threads:
    """Threads, as many as there are callbacks that wait at once. Those that have nothing to do end after a while."""

    def __init__(self) -> None:
        self._acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def run(self, act: Callable[[], None]) -> None:
        with self._lock:
            is_new = self._idle == 0
            self._idle -= not is_new
        self._acts.put(act)
        if is_new:
            threading.Thread(target=self._serve, name="casync callbacks", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                act = self._acts.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._idle == 0:  # an act was meant for this one a moment ago
                        continue
                    self._idle -= 1
                    return
            try:
                act()
            except BaseException:
                _LOG.exception("a callback of a future has failed")
            del act
            with self._lock:
                self._idle += 1


_threads = _Threads()


def run_aside(act: Callable[[], None]) -> None:
    """Have another thread call `act`, which may wait."""
    _threads.run(act)


def _in_child() -> None:
    global _threads
    _threads = _Threads()  # threads stay with the parent


os.register_at_fork(after_in_child=_in_child)
