"""How the tensors of a group's call are submitted: each under a name, with a codec, and told the loss scale."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from casync._constants import OP_KINDS, REDUCE_OPS
from casync.codecs import specs as codecs
from casync.config.rules import Rules
from casync.errors import CasyncError
from casync.session.completion_group import CompletionGroup
from casync.session.session import Session
from casync.tensors.device import Device
from casync.tensors.signature import Average, OpKind, OpSignature, Sum

from . import device
from .c10d_backward import WithData, backward_pass, sender_of
from .c10d_names import CallNames, NamedOperation
from .c10d_options import BackendOptions
from .c10d_values import deal_out
from .c10d_work import GroupWork
from .tensors import TENSORS

__all__ = ["Submits"]


class _Call(NamedTuple):
    """The facts that tell calls apart."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    reduction: int
    root: int
    on_device: bool


class Submits:
    """The submits of one group."""

    def __init__(
        self, session: Session, names: CallNames, rules: Rules, options: BackendOptions, with_data: WithData
    ) -> None:
        self._session, self._names, self._rules, self._with_data = session, names, rules, with_data
        self._compresses_all = options.compress_all
        self._scaler = options.grad_scaler
        self._scales: dict[torch.amp.GradScaler, tuple[int, float]] = {}  # a backward pass, and the scale in it

    def together(self, work: GroupWork) -> CompletionGroup:
        """Submit the operations of `work` in a `with` block. The last of them ends it."""
        work.together = self._session.together(work.over)
        return work.together

    def exchange(
        self,
        kind: int,
        call: str,
        outputs: Sequence[torch.Tensor],
        source: torch.Tensor,
        dtype: torch.dtype,
        deal: Callable[[bytearray, Sequence[int], Sequence[torch.Tensor]], None] | None = None,
        **lengths: Any,
    ) -> GroupWork:
        """Bytes to each rank, and from each. Lengths are each rank's own, so one registration serves all of them.
        `deal` puts what has come into `outputs`.
        """
        deal = deal or functools.partial(deal_out, call)
        work = GroupWork(call, outputs)

        def over(error: BaseException | None, gathered: Any) -> None:
            if error is None:
                data, rows = gathered
                work._finish = functools.partial(deal, data, rows, outputs)
            work.over(error)

        where = TENSORS.device(source)
        if not source.numel():  # else the outputs would be written before their stream is there
            device.await_stream(source)
        on_device = where is not None
        name = self._names.exact((call, dtype, on_device), work)
        terms = OpSignature(f"{OP_KINDS[kind]}.{name}", kind, "uint8", (), on_device=on_device)
        try:
            registration = self._session.register(terms)
            self._session.submit(
                registration, source.data_ptr(), 0, (source, work), completion=over, device=where, **lengths
            )
        except CasyncError as error:
            work.over(error)
        return work

    def _codec(self, call: str, flat: torch.Tensor, reduction: int) -> str:
        if reduction not in (Sum, Average) or not flat.is_floating_point():
            return "none"
        if flat.numel() < self._session.config.min_numel:
            return "none"
        return codecs.codec_by_name(self._rules, f"{call}.{flat.numel()}", flat.shape)

    def call(self, kind: str, flat: torch.Tensor, reduction: int, root: int, dtype: torch.dtype | None = None) -> _Call:
        """`dtype` of the user's tensor, if `flat` is another view of it."""
        name = TENSORS.dtype(flat) if dtype is None else str(dtype)
        return _Call(kind, name, tuple(flat.shape), reduction, root, TENSORS.device(flat) is not None)

    def reduce(
        self,
        kind: int,
        source: torch.Tensor,
        target: torch.Tensor,
        reduction: int,
        work: GroupWork,
        together: CompletionGroup,
        named: NamedOperation | None,
        what: str,
        root: int = 0,
    ) -> None:
        short = "allreduce" if kind == OpKind.ALLREDUCE else "reduce_scatter"
        sender = sender_of(short, source)
        work.is_reducer = sender is not None and sender.is_reducer
        work.detail = f" by {REDUCE_OPS[reduction]}{f' to {root}' if what == 'reduce' else ''}"
        call = self.call(what, source, reduction, root)
        if named is None:
            codec = "none" if self._with_data.is_some(self._session.size) else self._codec(short, source, reduction)
            if codec != "none" and (sender is not None or self._compresses_all):
                name = self._names.lossy(call, sender, work)
                named = None if name is None else NamedOperation(name, codec)
            named = named or NamedOperation(self._names.exact(call, work), "none")
            is_gradient = sender is not None
        else:
            is_gradient = True
            self._names.take(named.name, work)
        self.submit(kind, source, target, call, named, work, together, is_gradient)

    def submit(
        self,
        kind: int,
        source: torch.Tensor,
        target: torch.Tensor,
        call: _Call,
        named: NamedOperation,
        work: GroupWork,
        together: CompletionGroup,
        is_gradient: bool = False,
    ) -> None:
        terms = OpSignature(
            named.name,
            kind,
            TENSORS.dtype(source),
            call.shape,
            call.reduction,
            call.root if kind == OpKind.BROADCAST else 0,
            compression=named.codec,
            topology=named.topology or self._session.config.topology,
            on_device=call.on_device,
        )
        registration = self._session.register(terms)
        scaler = (named.scaler or self._scaler) if is_gradient else None
        if scaler is not None and codecs.keeps_state(named.codec):
            self._session.set_optimizer(registration, 0.0, loss_scale=self._scale_of(scaler))
        where = TENSORS.device(source, target)
        self.start(registration, source.data_ptr(), target.data_ptr(), work, together, (source, target), where)

    def _scale_of(self, scaler: torch.amp.GradScaler) -> float:
        """Asked once in a backward pass: on a GPU the question waits for the device."""
        turn = backward_pass()
        asked, scale = self._scales.get(scaler, (-1, 1.0))
        if turn < 0 or turn != asked:
            scale = float(scaler.get_scale())
            self._scales[scaler] = turn, scale
        return scale

    def start(
        self,
        registration: int,
        source: int,
        target: int,
        work: GroupWork,
        together: CompletionGroup,
        keep: Any = None,
        where: Device | None = None,
    ) -> None:
        try:
            self._session.submit(registration, source, target, keep, completion=together, device=where)
        except CasyncError as error:
            work.refused(error)
