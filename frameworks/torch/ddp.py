"""CaSync under `torch.nn.parallel.DistributedDataParallel`: a communication hook.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(casync.torch.ddp_state(compression="powersgd(rank=4)"), casync.torch.ddp_hook)

DDP hands over its buckets as backward fills them; each gradient in a bucket is an operation of its own, under its
parameter's name, so that what a codec keeps of it survives DDP's rebuilding of the buckets.
"""

# No postponed annotations here: DDP looks at those of its hook.
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from casync import codecs, default, state
from casync.codec_states import Claim
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.terms import Average, OpKind, Terms, tensor_name

from . import ops
from .compression import Compression
from .loss_scale import LossScale
from .waiting import PendingGroup

__all__ = ["DdpState", "ddp_hook", "ddp_state"]


class DdpState:
    """What `ddp_hook` needs between its calls, for one DistributedDataParallel; made by `ddp_state`."""

    def __init__(
        self,
        compression: Any,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
        topology: str | None,
        grad_scaler: torch.amp.GradScaler | None,
    ) -> None:
        owner = default.session()
        given = owner.config.compression if compression is Compression.none else compression
        self._owner = owner
        self._rules = codecs.rules_of(given)
        self._topology = owner.config.topology if topology is None else topology
        self._loss_scale = LossScale(grad_scaler, self._rules)
        self._scale = 1.0  # of the gradients of this backward
        self._told: dict[str, float] = {}  # tensor -> the scale that the core was told last
        self._has_looked = False
        for _, codec in self._rules.pairs:
            if codecs.takes_momentum(codec):
                raise NotAvailableError(
                    f"compression {codec!r} takes over the optimizer's momentum, which a hook of DDP cannot reach: use "
                    "casync.torch.DistributedOptimizer in place of DistributedDataParallel"
                )
        # The ranks make their states in one order, so this tells two models apart.
        self._prefix = f"ddp{owner.next_number('ddp')}"
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named_parameters or ()}
        if self._names:
            codecs.check_rules(owner, self._rules, self._names.values())
        self._numbers = not self._names
        self._tensors: dict[str, str] = {}  # of the parameters that are claimed, by their names
        self._claim = Claim()
        self._waiting: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
        self._handles: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and codec state by parameter name. Local; call it between steps, and save one per
        rank."""
        if self._handles:
            raise AssertionError("state_dict() of a DDP hook was called while backward was running")
        return state.converted(state.collect(self._owner, self._tensors), torch.from_numpy)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave; before the first backward, or between steps. State of another rank starts
        anew, with a warning.
        """
        self._take([*state_dict["residuals"], *state_dict.get("states", {})])
        state.restore(self._owner, self._tensors, state.converted(state_dict, torch.Tensor.numpy))

    def submit(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """See `ddp_hook`."""
        if not bucket.index():
            self._begin()
        names = [self._name_of(parameter) for parameter in bucket.parameters()]
        if bucket.buffer().layout is not torch.strided:
            raise NotAvailableError(
                f"the gradient of {names[0]} is sparse, which DDP's hook does not carry: use "
                "casync.torch.DistributedOptimizer, or Embedding(sparse=False)"
            )
        self._take(names)
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            codec = codecs.codec_by_name(self._rules, name)
            tensor = self._tensors[name]
            if self._told.get(tensor, 1.0) != self._scale:
                self._tell(tensor, gradient, codec)
            handle = ops.allreduce_async_(gradient, name=tensor, op=Average, compression=codec, topology=self._topology)
            self._handles.append(handle)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.append((done, bucket.buffer()))
        # DDP asks for no result before its last bucket is handed over: to wait there needs no thread.
        if bucket.is_last():
            self._finish()
        return done

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        handles, self._handles = self._handles, []
        if handles:
            PendingGroup(self._owner, handles).finish(self._owner, handles[-1])
        for done, buffer in waiting:
            done.set_result(buffer)

    def _name_of(self, parameter: torch.Tensor) -> str:
        name = self._names.get(parameter)
        if name is None:
            if not self._numbers:
                raise InvalidArgumentError(
                    f"ddp_state(named_parameters=...) names no parameter of shape {tuple(parameter.shape)} that DDP "
                    "synchronises: give model.named_parameters() of the same model"
                )
            # By first appearance: DDP's first buckets follow the parameters' order, which all ranks share.
            name = self._names[parameter] = f"{self._prefix}.{len(self._names)}"
        return name

    def _take(self, names: Iterable[str]) -> None:
        new = {name: tensor_name(self._owner, OpKind.ALLREDUCE, name) for name in names if name not in self._tensors}
        if new:
            self._owner.codec_states.give_to(self._claim, new.values())
            self._tensors.update(new)

    def _begin(self) -> None:
        self._check()
        self._scale = self._loss_scale.now()
        if not self._has_looked:
            self._loss_scale.look_for_another("ddp_state")
            self._has_looked = True

    def _tell(self, tensor: str, gradient: torch.Tensor, codec: str) -> None:
        terms = Terms(
            tensor, OpKind.ALLREDUCE, ops.dtype_name(gradient), gradient.shape, Average, compression=codec,
            topology=self._topology,
        )  # fmt: skip
        self._owner.set_optimizer(terms.register(self._owner), 0.0, loss_scale=self._scale)
        self._told[tensor] = self._scale

    def _check(self) -> None:
        self._claim.check()
        owner = default.session()
        if owner is not self._owner:
            raise InvalidArgumentError("this ddp_state belongs to a session that was shut down: make a new one")
        theirs, ours = (dist.get_rank(), dist.get_world_size()), (owner.rank, owner.size)
        if theirs == ours:
            return
        told = f"torch.distributed says rank {theirs[0]} of {theirs[1]}"
        if owner.size == 1:
            raise InvalidArgumentError(
                f"{told}, and CaSync is alone: start the processes with `casyncrun -np {theirs[1]} python ...`"
            )
        raise InvalidArgumentError(
            f"{told}, CaSync rank {ours[0]} of {ours[1]}: give init_process_group hvd.rank() and hvd.size()"
        )


def ddp_state(
    compression: Any = Compression.none,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    topology: str | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> DdpState:
    """The first argument of `register_comm_hook`; one per DistributedDataParallel, made in one order on all ranks.

    Args:
        compression: a codec, or codecs by name, as in `DistributedOptimizer`; not one that takes over the optimizer's
            momentum (dgc).
        named_parameters: `model.named_parameters()`. Without it parameters are numbered in DDP's order, ddp0.0, ddp0.1
            and so on.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals.

    `state_dict()` of it belongs into every rank's checkpoint, as an optimizer's. `init()` comes first.
    """
    return DdpState(compression, named_parameters, topology, grad_scaler)


def ddp_hook(hook_state: DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The second argument of `register_comm_hook`: the bucket's gradients become their mean over all ranks.

    Called by DDP, with what `ddp_state` made as `hook_state`, on the thread that runs backward. The call with the last
    bucket waits for all of them, and raises what ended an operation (`HorovodInternalError`).
    """
    return hook_state.submit(bucket)
