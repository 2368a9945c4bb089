"""CaSync under `torch.nn.parallel.DistributedDataParallel`: a communication hook.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(casync.torch.ddp_state(compression="powersgd(rank=4)"), casync.torch.ddp_hook)

DDP hands over its buckets as backward fills them; each gradient in a bucket is an operation of its own, under its
parameter's name, so that what a codec keeps of it survives DDP's rebuilding of the buckets.
"""

# No postponed annotations here: DDP looks at those of its hook.
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from casync import codecs, default
from casync.collectives.gradient_submits import Gradient, GradientSubmits, OptimizerTerms
from casync.collectives.settings import Settings
from casync.compression import Compression
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError
from casync.session import Together

from .loss_scale import LossScale
from .tensors import TENSORS

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
        settings = Settings.of(compression=compression, topology=topology)
        owner = default.session()
        self._owner = owner
        self._submits = GradientSubmits(TENSORS, settings, always_claims=True)
        self._loss_scale = LossScale(grad_scaler, settings.rules)
        self._terms = OptimizerTerms()  # of the gradients of this backward
        self._has_looked = False
        for _, codec in settings.rules.pairs:
            if codecs.takes_momentum(codec):
                raise NotAvailableError(
                    f"compression {codec!r} takes over the optimizer's momentum, which a hook of DDP cannot reach: use "
                    "casync.torch.DistributedOptimizer in place of DistributedDataParallel"
                )
        # The ranks make their states in one order, so this tells two models apart.
        self._prefix = f"ddp{owner.next_number('ddp')}"
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named_parameters or ()}
        if self._names:
            codecs.check_rules(owner, settings.rules, self._names.values())
        self._numbers = not self._names
        self._outstanding = 0
        self._under_way: list[Together] = []  # of this backward
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # until the next: on a GPU they are read later
        self._failure: CasyncError | None = None  # the first of this backward

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and codec state by parameter name. Local; call it between steps, and save one per
        rank."""
        if self._outstanding:
            raise AssertionError("state_dict() of a DDP hook was called while backward was running")
        return self._submits.state_dict(self._submits.by_name.values(), torch.from_numpy)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave; before the first backward, or between steps. State of another rank starts
        anew, with a warning.
        """
        self._submits.know([*state_dict["residuals"], *state_dict.get("states", {})])
        self._submits.load_state_dict(self._submits.by_name.values(), state_dict, torch.Tensor.numpy)

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
        self._submits.know(names)
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = None if buffer.is_cpu else [buffer.device]
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of what is not contiguous

        def over(error: CasyncError | None) -> None:
            try:
                for values, contiguous in copies if error is None else ():
                    TENSORS.assign(values, contiguous)
            finally:  # or DDP would wait for ever
                self._failure = self._failure or error
                self._outstanding -= 1
                future.set_result(buffer)

        self._outstanding += 1
        gradients = bucket.gradients()
        with self._owner.together(over) as together:
            for i, (name, values) in enumerate(zip(names, gradients, strict=True), 1):
                contiguous = values.contiguous()
                if contiguous is not values:
                    copies.append((values, contiguous))
                self._submit(self._submits.by_name[name], contiguous, together, is_last=i == len(gradients))
        self._under_way.append(together)
        self._copies += copies
        return future

    def _submit(self, gradient: Gradient, values: torch.Tensor, together: Together, *, is_last: bool) -> None:
        submits, owner = self._submits, self._owner
        if not submits.is_registered(owner, gradient, values.dtype, values.shape, values.device):
            submits.register(owner, gradient, TENSORS.admit(values), values.dtype, values.shape, values.device)
        if self._loss_scale.is_told:
            submits.tell(owner, gradient, self._terms)
        submits.submit_to(together, owner, gradient, values, wake=is_last)

    def _begin(self) -> None:
        """At the first bucket of a backward."""
        self._check()
        self._failure = None
        if self._loss_scale.is_told:  # on a GPU the question waits for the device
            self._terms = OptimizerTerms(loss_scale=self._loss_scale.now())
        if not self._has_looked:
            self._loss_scale.look_for_another("ddp_state")
            self._has_looked = True
        self._under_way.clear()
        self._copies.clear()
        _after_backward(self._after_last_hook)

    def _after_last_hook(self) -> None:
        """Backward is through, and DDP would now wait for its futures: this thread makes progress meanwhile."""
        _after_backward(self._end)
        for together in self._under_way:
            together.wait()
        self._under_way.clear()

    def _end(self) -> None:
        """When DDP has taken all results: raises what ended an operation."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

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

    def _check(self) -> None:
        self._submits.check()
        owner = default.session()
        if owner is not self._owner:
            raise InvalidArgumentError("this ddp_state belongs to a session that was shut down: make a new one")
        theirs, ours = (dist.get_rank(), dist.get_world_size()), (owner.rank, owner.size)
        if theirs == ours:
            return
        told = f"torch.distributed says rank {theirs[0]} of {theirs[1]}"
        if owner.size == 1:
            raise InvalidArgumentError(
                f"{told}, and CaSync is alone: call hvd.init() after init_process_group(), or start the processes with "
                f"torchrun or with `casyncrun -np {theirs[1]} python ...`"
            )
        raise InvalidArgumentError(
            f"{told}, CaSync rank {ours[0]} of {ours[1]}: give init_process_group hvd.rank() and hvd.size()"
        )


def _after_backward(act: Callable[[], None]) -> None:
    """Have autograd call `act` when what it has been told to call so far has been, on the thread of `backward()`."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


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

    Called by DDP, with what `ddp_state` made as `hook_state`, on the thread that runs backward. It does not wait: the
    future of `bucket` has its result when the last of its gradients does. What ended an operation
    (`HorovodInternalError`) is raised by `backward()`, once all have ended.
    """
    return hook_state.submit(bucket)
