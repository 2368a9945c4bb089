"""CaSync under `torch.nn.parallel.DistributedDataParallel`: a communication hook.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(casync.torch.ddp_state(compression="powersgd(rank=4)"), casync.torch.ddp_hook)

DDP hands over its buckets as backward fills them; each gradient in a bucket is an operation of its own, under its
parameter's name, so that what a codec keeps of it survives DDP's rebuilding of the buckets.
"""

# No postponed annotations here: DDP looks at those of its hook.
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from casync.checkpoint import optimizer as state
from casync.codecs import specs as codecs
from casync.codecs.compression import given
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.gradient_submits import Gradient, OptimizerSettings
from casync.collectives.settings import Settings
from casync.collectives.sparse_exchange import SparsePending
from casync.errors import CallOrderError, CasyncError, InvalidArgumentError, NotAvailableError
from casync.observe.compression_monitor import CompressionMonitor
from casync.session import default
from casync.session.completion_group import CompletionGroup
from casync.session.session import Session
from casync.tensors.signature import Average, Sum

from . import ops
from . import sparse_tensors as sparse
from .ddp_gradients import DdpGradients, parts_of, wire_of
from .ddp_groups import caller_of, divisor_is_of_active, may_discard, members_of
from .loss_scale import LossScale
from .parameter_names import shapes_of

__all__ = ["DdpState", "ddp_hook", "ddp_state"]

_Result = torch.futures.Future[torch.Tensor]
_OUTSIDE = -1  # of all backward passes
_BETWEEN_STEPS = "{} of a DDP hook was called while a backward pass was under way. Call it between steps."


class _Sparse(NamedTuple):
    """A sparse gradient under way: a bucket of its own."""

    pending: SparsePending[torch.Tensor]
    gradient: torch.Tensor
    result: _Result


class DdpState:
    """The state that `ddp_hook` keeps between its calls, for one DistributedDataParallel; made by `ddp_state`.

    Which DDP calls, and so among which ranks it reduces, is known at the first bucket. A copy of it, as `copy.deepcopy`
    and pickle make with the model in DDP, has the same settings and begins anew; it knows no GradScaler.
    """

    def __init__(
        self,
        compression: CompressionLike,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
        topology: str | None,
        grad_scaler: torch.amp.GradScaler | None,
        min_numel: int | None,
        monitor: CompressionMonitor | None,
    ) -> None:
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named_parameters or ()}
        world = default.session()
        self._know(compression, topology, names, min_numel, monitor, world, grad_scaler)
        settings = self._checked(compression, monitor)
        LossScale(grad_scaler, settings.rules)
        if names:
            codecs.check_rules(settings.rules, shapes_of(names), may_warn=world.rank == 0)

    def _know(
        self,
        compression: CompressionLike,
        topology: str | None,
        names: dict[torch.Tensor, str],
        min_numel: int | None,
        monitor: CompressionMonitor | None,
        world: Session | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._compression, self._topology, self._names = compression, topology, names
        self._min_numel, self._monitor = min_numel, monitor
        self._world, self._grad_scaler = world, grad_scaler
        self._group: Any = None  # that of the DDP, which `_gradients` are for
        self._gradients: DdpGradients | None = None
        self._loaded: Mapping[str, Any] | None = None  # until there are gradients
        self._loss_scale: LossScale | None = None
        self._terms = OptimizerSettings()  # of the gradients of this backward
        self._bucket = sys.maxsize  # the last one that came
        self._task = _OUTSIDE  # of autograd, whose end was asked for
        self._factor = 1.0  # of the means of this backward
        self._results: list[_Result] = []  # of this backward
        self._under_way: list[CompletionGroup] = []
        self._sparse: list[_Sparse] = []
        self._may_discard: list[tuple[Gradient, torch.Tensor, torch.Tensor]] = []  # each with its parameter and mean
        self._whole: list[torch.Tensor] = []  # what goes uncompressed in this backward, with what was held back of it
        self._watches = False
        self._failure: CasyncError | None = None  # the first of this backward

    def _checked(self, compression: CompressionLike, monitor: CompressionMonitor | None) -> Settings:
        """The settings with this codec. Raises what is wrong with it."""
        settings = Settings.of(
            compression=compression, topology=self._topology, min_numel=self._min_numel, monitor=monitor, may_watch=True
        )
        for _, codec in settings.rules.pairs:
            if codecs.takes_momentum(codec):
                raise NotAvailableError(
                    f"compression {codec!r} takes over the optimizer's momentum, which a hook of DDP cannot reach: use "
                    "casync.torch.DistributedOptimizer in place of DistributedDataParallel"
                )
        return settings

    def __getstate__(self) -> dict[str, Any]:
        kept = {"compression": self._compression, "topology": self._topology, "names": self._names}
        return {**kept, "min_numel": self._min_numel, "monitor": self._monitor}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._know(**kept)

    def set_compression(self, compression: CompressionLike) -> None:
        """Have another codec, or other codecs by name, from the next step on. The argument is that of `ddp_state`.

        Call it between steps, on all ranks before the same step; ranks that differ get a `MismatchError` in that step.
        A gradient whose codec changes goes uncompressed once, with all that was held back of it, so nothing is lost.
        """
        if not all(result.done() for result in self._results):
            raise CallOrderError(_BETWEEN_STEPS.format("set_compression()"))
        rules = self._checked(compression, self._monitor).rules
        if self._names:
            codecs.check_rules(rules, shapes_of(self._names), may_warn=default.session().rank == 0)
        settings = self._gradients.settings.with_rules(rules) if self._gradients is not None else None
        self._compression = compression
        if self._loaded is not None:  # and no step was made since
            self._loaded = {**self._loaded, "unsent": sorted({*self._loaded["residuals"], *self._loaded["states"]})}
        if self._gradients is not None and settings is not None and self._loss_scale is not None:
            self._gradients.set_settings(settings)
            self._loss_scale.set_rules(rules)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and codec state by parameter name. Local; call it between steps, and save one per
        rank."""
        if not all(result.done() for result in self._results):
            raise CallOrderError(_BETWEEN_STEPS.format("state_dict()"))
        gradients = self._gradients
        if gradients is not None:
            return gradients.state_dict(gradients.by_name.values(), torch.from_numpy)
        if self._loaded is not None:
            return dict(self._loaded)
        return state.collect(default.session(), {})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave; before the first backward, or between steps. State of another rank starts
        anew, with a warning.
        """
        gradients = self._gradients
        if gradients is None:
            self._loaded = state_dict
            return
        kept = state_dict["residuals"], state_dict.get("states", {}), state_dict.get("fallbacks", {})
        gradients.know(name for names in kept for name in names)
        gradients.load_state_dict(gradients.by_name.values(), state_dict, torch.Tensor.numpy)

    def release(self) -> None:
        """Training in this DDP is over: what `casync.load_state` loads from now on is for the next ddp_state."""
        if self._gradients is not None:
            self._gradients.release()

    # --- a bucket -----------------------------------------------------------------------------------------------------

    def submit(self, bucket: dist.GradBucket) -> _Result:
        """See `ddp_hook`."""
        task = torch._C._current_graph_task_id()
        if bucket.index() <= self._bucket:
            self._begin(bucket, is_active=task != _OUTSIDE)
        self._bucket = bucket.index()
        if task not in (_OUTSIDE, self._task):  # with activation checkpointing a backward may have several
            _after_backward(self._after_last_hook)
        self._task = task
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = None if buffer.device.type == "cpu" else [buffer.device]
        result: _Result = torch.futures.Future(devices=devices)
        submit = self._submit_dense if buffer.layout is torch.strided else self._submit_sparse
        submit(bucket, result)
        self._results.append(result)
        if task == _OUTSIDE and bucket.is_last():  # a rank that has joined has no backward that would end
            self._finish()
            self._end()
        return result

    def _submit_dense(self, bucket: dist.GradBucket, result: _Result) -> None:
        ours, buffer, factor = self._ours(), bucket.buffer(), self._factor

        def over(error: CasyncError | None) -> None:
            try:
                if error is None and factor != 1.0:
                    buffer.mul_(factor)
            finally:  # or DDP would wait for ever
                self._failure = self._failure or error
                result.set_result(buffer)

        gradients, parts = ours.of(bucket), parts_of(bucket)
        if self._watches:
            self._may_discard += zip(gradients, bucket.parameters(), parts, strict=True)
        with ours.owner.together(over) as together:
            for i, (gradient, values) in enumerate(zip(gradients, parts, strict=True), 1):
                self._submit(ours, gradient, values, together, is_last=i == len(parts))
        self._under_way.append(together)

    def _submit(
        self, ours: DdpGradients, gradient: Gradient, values: torch.Tensor, together: CompletionGroup, *, is_last: bool
    ) -> None:
        owner = ours.owner
        if not ours.is_registered(owner, gradient, values.dtype, values.shape, values.device):
            ours.register(owner, gradient, values, values.dtype, values.shape, values.device)
        if self._loss_scale is not None and self._loss_scale.is_told:
            ours.tell(owner, gradient, self._terms)
        if ours.goes_whole(gradient):
            self._whole.append(values)
        ours.submit_to(together, owner, gradient, values, wake=is_last)

    def _submit_sparse(self, bucket: dist.GradBucket, result: _Result) -> None:
        ours, values = self._ours(), bucket.buffer()
        (gradient,) = ours.of(bucket)
        wire = wire_of(gradient, ours.codec_of(gradient, values.shape))
        pending = sparse.submit(values, gradient.tensor, Average, ours.settings.process_set, wire)
        self._sparse.append(_Sparse(pending, values, result))

    # --- a backward ---------------------------------------------------------------------------------------------------

    def _begin(self, bucket: dist.GradBucket, *, is_active: bool) -> None:
        """Begin a backward, at its first bucket. A rank is not active once it has left a `with ddp.join():` that others
        are still in.
        """
        caller = caller_of(self, bucket.parameters()[0])
        ours = self._among(caller)
        ours.check()
        self._finish()  # what a backward that raised has left
        self._results.clear()
        self._failure, self._task = None, _OUTSIDE
        if self._loss_scale is not None and self._loss_scale.is_told:  # on a GPU the question waits for the device
            self._terms = OptimizerSettings(loss_scale=self._loss_scale.now())
        self._may_discard.clear()
        self._whole.clear()
        self._watches = ours.has_kept and is_active and may_discard(caller)
        self._factor = 1.0
        if divisor_is_of_active(caller):
            mine = torch.tensor([float(is_active)])
            active = ops.allreduce(mine, name="ddp.active", op=Sum, process_set=ours.settings.process_set)
            self._factor = ours.owner.size / float(active)

    def _after_last_hook(self) -> None:
        """A part of backward is through, and DDP would now wait for its futures: this thread makes progress
        meanwhile.
        """
        _after_backward(self._end)
        self._finish()

    def _finish(self) -> None:
        """Wait for all that is under way."""
        for together in self._under_way:
            together.wait()
        self._under_way.clear()
        for one in self._sparse:
            mean = one.gradient
            try:
                mean = sparse.sparse_of(*one.pending.finish(), one.gradient.shape).coalesce()
                if self._factor != 1.0:
                    mean = mean * self._factor
            except CasyncError as error:
                self._failure = self._failure or error
            finally:  # or DDP would wait for ever
                one.result.set_result(mean)
        self._sparse.clear()

    def _end(self) -> None:
        """End a backward, when DDP has taken all results. Raises the error that ended an operation."""
        failure, self._failure = self._failure, None
        given, self._may_discard = self._may_discard, []
        whole, self._whole = self._whole, []
        if failure is None and not all(bool(mean.isfinite().all()) for mean in whole):
            self._ours().take_back()  # the program skips this step, on all ranks
        elif whole:
            self._ours().applied()
        if (watch := self._ours().watch) is not None:
            if failure is None and self._factor == 1.0:
                watch.step_over(self._ours().owner, Average)
            else:
                watch.drop()
        if failure is not None:
            raise failure
        for gradient, parameter, mean in given:
            # DDP takes no mean of a parameter that no rank used. But codecs have sent what was pending of it.
            if parameter.grad is None or (mean.any() and not parameter.grad.any()):
                self._ours().put_back(gradient, mean / self._terms.loss_scale)

    # --- among which ranks --------------------------------------------------------------------------------------------

    def _ours(self) -> DdpGradients:
        assert self._gradients is not None, "a backward begins with its first bucket"
        return self._gradients

    def _among(self, caller: torch.nn.parallel.DistributedDataParallel | None) -> DdpGradients:
        """The gradients among the ranks of `caller`; new ones where those are others than before."""
        world = default.session()
        self._world = self._world or world
        if world is not self._world:
            raise InvalidArgumentError("this ddp_state belongs to a session that was shut down: make a new one")
        group = None if caller is None else caller.process_group
        if self._gradients is None or group is not self._group or not self._gradients.owner.is_open:
            members = members_of(world, caller)
            settings = Settings.of(
                compression=self._compression,
                topology=self._topology,
                min_numel=self._min_numel,
                process_set=members,
                monitor=self._monitor,
                may_watch=True,
            )
            gradients = DdpGradients(settings, self._names)
            self._loss_scale = LossScale(self._grad_scaler, settings.rules)
            self._loss_scale.look_for_another("ddp_state")
            self._gradients, self._group = gradients, group
            if self._loaded is not None:
                loaded, self._loaded = self._loaded, None
                self.load_state_dict(loaded)
        return self._gradients


def _after_backward(act: Callable[[], None]) -> None:
    """Have autograd call `act`, after the calls that it was given before, on the thread of `backward()`."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def ddp_state(
    compression: CompressionLike = None,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    rules: CodecsByName | None = None,
    min_numel: int | None = None,
    topology: str | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    monitor: CompressionMonitor | None = None,
) -> DdpState:
    """The first argument of `register_comm_hook`; one per DistributedDataParallel. Gradients become their mean over the
    ranks of that DDP's process group.

    Args:
        compression: a codec, or codecs by name, as in `DistributedOptimizer`; not one that takes over the optimizer's
            momentum (dgc). None takes `CASYNC_COMPRESSION`.
        named_parameters: `model.named_parameters()`. Without it parameters are numbered in DDP's order, ddp0.0, ddp0.1
            and so on. All ranks first use their models in one order.
        rules: codecs by name, in place of `compression`.
        min_numel: gradients of fewer elements are exact; None takes `Config.min_numel`.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals.
        monitor: measures what codecs do to gradients, and warns or falls back; None takes `Config.watch_codecs`.

    `state_dict()` of it belongs into every rank's checkpoint, as an optimizer's. `init()` comes first.
    """
    return DdpState(given(compression, rules), named_parameters, topology, grad_scaler, min_numel, monitor)


def ddp_hook(hook_state: DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The second argument of `register_comm_hook`: the bucket's gradients become their mean over DDP's ranks.

    Called by DDP, with what `ddp_state` made as `hook_state`, on the thread that runs backward. It does not wait, but
    for the first bucket where it asks how many ranks have data, for `join(divide_by_initial_world_size=False)`: the
    future of `bucket` has its result when the last of its gradients does. What ended an operation
    (`HorovodInternalError`) is raised by `backward()`, once all have ended.
    """
    return hook_state.submit(bucket)
