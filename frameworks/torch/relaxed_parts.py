"""What the rounds of local SGD and DiLoCo need of torch: parameters, buffers, and torch's optimizers as outer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from casync.errors import InvalidArgumentError
from casync.tensors.adaptor import Tensors

__all__ = [
    "Held",
    "OuterOptimizer",
    "balanced",
    "buffers_of",
    "check_module",
    "fixed_of",
    "is_sharded",
    "named_of",
    "parameters_of",
    "reshard",
    "restored",
]

_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""The dtypes of parameters that are not quantised. Quantised ones come from a file."""


class Held:
    """A parameter or a buffer. Of a DTensor it is this rank's part; of complex numbers it is pairs of real ones."""

    __slots__ = ("name", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor = name + shard_of(tensor), tensor

    def read(self) -> torch.Tensor:
        values = local_of(self.tensor)
        return torch.view_as_real(values) if values.is_complex() else values

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        self.read().copy_(values)


class _Buffer(Held):
    """A buffer, which its module may replace by another tensor in any step."""

    __slots__ = ("_buffers", "_key")

    def __init__(self, name: str, module: torch.nn.Module, key: str) -> None:
        self._buffers, self._key = module._buffers, key
        super().__init__(name, module.get_buffer(key))

    def read(self) -> torch.Tensor:
        current = self._buffers[self._key]
        assert current is not None
        self.tensor = current
        return super().read()


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, in its memory; any other tensor is its own part."""
    to_local = getattr(tensor, "to_local", None)
    return (tensor if to_local is None else to_local()).detach()


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "placements")


def shard_of(tensor: Any) -> str:
    """Which part of a DTensor this rank has, as an addition to its name: "" if it has all. Ranks that have different
    parts so have different names, and cannot average them by mistake.
    """
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return ""
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    parts = [f"{place[d]} of {mesh.size(d)}" for d, placement in enumerate(placements) if placement.is_shard()]
    return f"[{', '.join(parts)}]" if parts and place is not None else ""


def restored(like: Any, values: torch.Tensor) -> torch.Tensor:
    """`values`, as `Held.read` gives them, as a tensor like the model's: a DTensor, or complex."""
    if like.is_complex():
        values = torch.view_as_complex(values)
    if not is_sharded(like):
        return values
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        values, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def check_module(module: torch.nn.Module) -> None:
    """Raise `InvalidArgumentError` if the parameters of `module` are not where they seem to be."""
    for each in module.modules():
        if type(each).__name__ == "FullyShardedDataParallel":
            raise InvalidArgumentError(
                "the model is in FullyShardedDataParallel, whose parameters do not say which part of what they are: "
                "use fully_shard()"
            )
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        if values.is_meta:
            raise InvalidArgumentError(
                f"{name} is on the device meta, and has no values: call to_empty() on the model and give it some before"
            )


def named_of(prefix: str, module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a module by names that begin with `prefix`, alike whether it is compiled or not."""
    return {name.replace("_orig_mod.", ""): value for name, value in module.named_parameters(prefix=prefix)}


def reshard(module: torch.nn.Module) -> None:
    """Have `fully_shard` gather the parameters anew in the next forward. It keeps some that it has gathered: after a
    forward for evaluation it does so until the next backward.
    """
    for each in module.modules():
        if hasattr(each, "set_reshard_after_backward"):  # an FSDPModule; torch.distributed.fsdp is not loaded for this
            each.reshard()  # type: ignore[operator]  # a method, and not a submodule


def parameters_of(prefix: str, module: torch.nn.Module) -> list[Held]:
    """The parameters of a module that require a gradient."""
    return [Held(name, value) for name, value in named_of(prefix, module).items() if value.requires_grad]


def buffers_of(prefix: str, module: torch.nn.Module) -> list[Held]:
    """The buffers that a checkpoint has: those that change in training, as running means do, and masks."""
    found: list[Held] = []
    for path, each in module.named_modules(prefix=prefix):
        for name, _ in each.named_buffers(prefix=path, recurse=False):
            if name.rpartition(".")[2] not in each._non_persistent_buffers_set:
                found.append(_Buffer(name.replace("_orig_mod.", ""), each, name.rpartition(".")[2]))
    return found


def fixed_of(parameters: Mapping[str, torch.Tensor], buffers: Sequence[Held]) -> list[Held]:
    """Return the frozen parameters, and the buffers that are masks: no step changes these."""
    frozen = {name: value for name, value in parameters.items() if not value.requires_grad}
    numbers = [Held(name, value) for name, value in frozen.items() if value.dtype in _NUMBERS]
    return numbers + [held for held in buffers if held.tensor.dtype is torch.bool]


def balanced(held: Sequence[Held], count: int) -> list[list[Held]]:
    """Cut a list into `count` that follow each other and have about as many bytes each; none is empty if there are as
    many parameters.
    """
    if count > len(held):
        raise InvalidArgumentError(f"num_fragments={count}, and there are {len(held)} parameters")
    sizes = [one.read().nbytes for one in held]
    total, taken, part = sum(sizes), 0, 0
    parts: list[list[Held]] = [[] for _ in range(count)]
    for place, (one, size) in enumerate(zip(held, sizes, strict=True)):
        wanted = int((taken + size / 2) * count / total) if total else 0
        part = max(min(wanted, part + 1 if parts[part] else part), count - (len(held) - place))
        parts[part].append(one)
        taken += size
    return parts


class OuterOptimizer:
    """One of torch's optimizers, or several, over the global parameters in place of the model's."""

    def __init__(
        self,
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
        held: Sequence[Held],
        device: torch.device | str | None,
    ) -> None:
        """`held`: the parameters. None for `optimizers` is DiLoCo's own. `device`: where to keep all; None: as is."""
        self._optimizers: list[torch.optim.Optimizer] = []
        if optimizers is None:
            parameters = [one.tensor for one in held]
            self._optimizers = [torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)]
        elif isinstance(optimizers, torch.optim.Optimizer):
            self._optimizers = [optimizers]
        elif isinstance(optimizers, Sequence) and all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
            self._optimizers = list(optimizers)
        else:
            raise InvalidArgumentError(
                f"outer_optimizer={optimizers!r}: it must be a torch.optim.Optimizer, or a list of them"
            )
        self._held, self._device = held, device

    def take(self, tensors: Tensors[torch.Tensor], anchors: dict[str, torch.Tensor]) -> None:
        del tensors
        if self._device is not None:
            anchors.update({name: anchor.to(self._device) for name, anchor in anchors.items()})
        self._anchors = anchors
        anchor_of = {one.tensor: anchors[one.name] for one in self._held}
        left = set(anchor_of)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                held = [parameter for parameter in group["params"] if parameter in anchor_of]
                group["params"] = [anchor_of[parameter] for parameter in held]
                left.difference_update(held)
            state, optimizer.state = optimizer.state, type(optimizer.state)(dict)
            optimizer.state.update((anchor_of[parameter], kept) for parameter, kept in state.items())
        if left:
            name = next(one.name for one in self._held if one.tensor in left)
            raise InvalidArgumentError(
                f"the outer optimizer does not hold {name} and {len(left) - 1} more parameters: make it of the "
                "parameters of all fragments"
            )

    def describe(self) -> str:
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
        return f"{[type(optimizer).__name__ for optimizer in self._optimizers]} {groups}"

    def step(self, names: Sequence[str], changes: Sequence[torch.Tensor]) -> None:
        for name, change in zip(names, changes, strict=True):
            self._anchors[name].grad = change
        for optimizer in self._optimizers:
            if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
                optimizer.step()
        for name in names:
            self._anchors[name].grad = None

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self._named().items()}

    def _named(self) -> dict[str, torch.optim.Optimizer]:
        return {f"{place} {type(optimizer).__name__}": optimizer for place, optimizer in enumerate(self._optimizers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        named = self._named()
        if state.keys() != named.keys():
            raise InvalidArgumentError(
                f"the state is of the outer optimizers {', '.join(state) or 'none'}, and there are {', '.join(named)}"
            )
        for name, optimizer in named.items():
            optimizer.load_state_dict(state[name])
