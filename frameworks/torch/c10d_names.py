"""The names of a group's calls. torch.distributed has none, but ranks meet by name, and codecs keep by name what they
have not sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from casync.collectives.call_order import CallOrder
from casync.errors import InvalidArgumentError
from casync.session.session import Session

from .c10d_backward import Sender, is_gone
from .c10d_futures import current_scope
from .c10d_watch import translated
from .c10d_work import GroupWork
from .loss_scale import LossScale

__all__ = ["CallNames", "NamedOperation"]

_LOG = logging.getLogger("casync")
_NAMES_PER_SIGNATURE = 16


class NamedOperation(NamedTuple):
    """An operation that has the same name in each step, and with it a codec."""

    name: str
    codec: str
    topology: str | None = None
    """None takes the topology of the group."""
    scaler: torch.amp.GradScaler | None = None
    """The GradScaler of the gradients; None takes that of the group."""


class CallNames:
    """The names of one group. `leaves_unused` says whether a DDP over it leaves the mean of a parameter alone that no
    rank has used.
    """

    def __init__(self, session: Session, loss_scale: LossScale, leaves_unused: Callable[[], bool]) -> None:
        self._session, self._loss_scale, self._leaves_unused = session, loss_scale, leaves_unused
        self._lock = threading.Lock()  # of what follows: callbacks call from threads of their own
        self._places = CallOrder()
        self._calls: dict[Hashable, int] = {}  # by signature, how many
        self._numbers = itertools.count(1)
        self._under: dict[str, GroupWork] = {}  # by name, the last call of it
        self._senders: dict[str, Hashable] = {}  # names under which codecs may keep something, and whose they are
        self._steps = 0  # of optimizers
        self._has_told = False
        self._expected: tuple[NamedOperation, int] | None = None  # the next allreduce, and of how many elements

    def exact(self, signature: Hashable, work: GroupWork) -> str:
        """The next of the few names of calls like this one. All ranks make the same calls in one order; those of a
        callback come in the order of that callback.
        """
        scope = current_scope()
        with self._lock:
            calls = self._calls if scope is None else scope.calls
            number = calls.get(signature, 0)
            calls[signature] = number + 1
        whole = signature if scope is None else (signature, scope.path)
        return self.take(f"c10d.{_digest(whole)}.{number % _NAMES_PER_SIGNATURE}", work)

    def take(self, name: str, work: GroupWork) -> str:
        """`work` has the name `name`, when the call that had it is over."""
        with self._lock:
            if not work.name:
                work.name = name
                work.number = 0 if current_scope() is not None else next(self._numbers)
                work.translate = translated
            earlier = self._under.get(name)
            self._under[name] = work
        if earlier is not None and earlier is not work:
            earlier.settle()
        return name

    def lossy(self, call: Hashable, sender: Sender | None, work: GroupWork) -> str | None:
        """The name under which a codec keeps what it has not sent; None: this time it is exact."""
        key = None if sender is None else sender.key
        with self._lock:
            if key is not None:
                place = self._places.of_object(call, key)
            else:
                place = self._places.of_turn(call, f"{self._steps}" if sender is None else sender.turn)
            if place.is_new and sender is not None and sender.may_move:
                return None  # DDP lays out its buckets anew after the first pass, and what is kept would be lost
            if sender is not None and sender.is_reducer and self._may_discard():
                return None
            name = f"c10d.{_digest(call)}.{place.name}"
            is_new = name not in self._senders
            if not self._senders:
                self._loss_scale.look_for_another("BackendOptions")
            self._senders[name] = key
        if is_new:
            self._forget_gone()
        return self.take(name, work)

    def _may_discard(self) -> bool:
        """Whether DDP may throw a mean away, and with it what a codec has sent late. Warns once."""
        found = self._leaves_unused()
        if found and not self._has_told:
            self._has_told = True
            _LOG.warning(
                "DistributedDataParallel(find_unused_parameters=True) does not take the mean of a parameter that no "
                "rank has used, so its gradients are not compressed over the backend casync: use "
                "casync.torch.ddp_hook, which gives such a mean back"
            )
        return found

    def _forget_gone(self) -> None:
        """Forget what codecs have kept of models that are no more."""
        with self._lock:
            gone = [name for name, key in self._senders.items() if is_gone(key)]
        with contextlib.suppress(InvalidArgumentError):  # one is still under way: next time
            self._session.codec_states.forget(gone)
            for name in gone:
                self._senders.pop(name, None)

    def expect(self, named: NamedOperation, numel: int) -> None:
        """The next allreduce, if it is of `numel` elements, is `named`: who calls it cannot say so."""
        self._expected = named, numel

    def take_expected(self, tensors: Sequence[torch.Tensor]) -> NamedOperation | None:
        expected, self._expected = self._expected, None
        if expected is not None and [tensor.numel() for tensor in tensors] == [expected[1]]:
            return expected[0]
        return None

    def end_step(self) -> None:
        """An optimizer has made its step."""
        self._steps += 1

    def outstanding(self) -> list[GroupWork]:
        """The calls that have not ended, in order; without those of callbacks."""
        works = {id(work): work for work in list(self._under.values()) if work.number and not work.ended.is_set()}
        return sorted(works.values(), key=lambda work: work.number)


def _digest(signature: Hashable) -> str:
    return hashlib.blake2s(repr(signature).encode(), digest_size=6).hexdigest()
