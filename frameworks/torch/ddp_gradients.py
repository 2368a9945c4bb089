"""The gradients of one DistributedDataParallel: their names, and what is submitted of a bucket."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from casync.codecs import specs as codecs
from casync.collectives import sparse_exchange as sparse
from casync.collectives.gradient_submits import Gradient, GradientSubmits
from casync.collectives.settings import Settings
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError
from casync.session.session import Session

from .parameter_names import shapes_of
from .tensors import TENSORS

__all__ = ["DdpGradients", "parts_of", "wire_of"]

_Names = dict[str, "weakref.ref[torch.Tensor]"]
_taken: weakref.WeakKeyDictionary[Session, _Names] = weakref.WeakKeyDictionary()
"""The parameter that was first to have a name, by session and name."""


class DdpGradients(GradientSubmits[torch.Tensor]):
    """The gradients of DDP among the ranks of `settings.process_set`.

    They have the names that the user gave, if there are such. A second model whose names are those of another one, as
    `layer.weight` may well be, has `ddp1.layer.weight` and so on, where ranks meet; its rules are for the names as they
    were given.
    """

    def __init__(self, settings: Settings, names: Mapping[torch.Tensor, str]) -> None:
        owner = settings.process_set.member_session()
        number = owner.call_numbers.next("ddp")
        super().__init__(TENSORS, settings, always_claims=True, prefix=_free_prefix(owner, names))
        self.owner = owner
        self._names = dict(names)
        self._numbered = "" if names else f"ddp{number}"

    def name_of(self, parameter: torch.Tensor) -> str:
        """The user's. Without such parameters have numbers by first appearance, since the first buckets of a DDP follow
        the order of the parameters, which all ranks share.
        """
        name = self._names.get(parameter)
        if name is None:
            if not self._numbered:
                raise InvalidArgumentError(
                    f"ddp_state(named_parameters=...) names no parameter of shape {tuple(parameter.shape)} that DDP "
                    "synchronises: give model.named_parameters() of the same model"
                )
            name = self._names[parameter] = f"{self._numbered}.{len(self._names)}"
        return name

    def of(self, bucket: dist.GradBucket) -> list[Gradient]:
        """Return the gradients of a bucket, in the order of `parts_of`."""
        names = [self.name_of(parameter) for parameter in bucket.parameters()]
        self.know(names)
        return [self.by_name[name] for name in names]

    def shape_of(self, gradient: Gradient) -> Shape:
        known = super().shape_of(gradient)
        return shapes_of(self._names).get(gradient.name) if known is None else known

    def release(self) -> None:
        """Nothing more will be submitted: what a checkpoint brings from now on waits for who has these names next."""
        if self.owner.is_open:
            self.owner.codec_states.release(self.claim)

    def put_back(self, gradient: Gradient, mean: torch.Tensor) -> None:
        """Have each rank send a mean again that nobody took, if it is finite and had a residual in it."""
        kept, tensor = self.owner.codec_states, gradient.tensor
        has_residual, fallback = tensor in kept.residual_names(), kept.fallbacks.get(tensor)
        went_whole = gradient.asked is not None and gradient.asked.compression == "none"
        if (has_residual or fallback is not None or went_whole) and mean.isfinite().all():
            again = mean.detach().float().cpu().reshape(-1)
            residual = torch.from_numpy(kept.residual(tensor)) + again if has_residual else again
            kept.set_residual(tensor, residual.numpy())
            if fallback is not None:
                kept.fall_back({tensor: fallback})
            elif went_whole:
                kept.send_all([tensor])


def _free_prefix(owner: Session, names: Mapping[torch.Tensor, str]) -> str:
    """The first with which no other model has one of these names. Ranks that use their models in one order agree."""
    taken = _taken.setdefault(owner, {})
    for place in itertools.count():
        prefix = f"ddp{place}." if place else ""
        wanted = {prefix + name: parameter for parameter, name in names.items()}
        if all(name not in taken or taken[name]() is parameter for name, parameter in wanted.items()):
            taken.update((name, weakref.ref(parameter)) for name, parameter in wanted.items())
            return prefix
    raise AssertionError("there is always a free one")


def parts_of(bucket: dist.GradBucket) -> Sequence[torch.Tensor]:
    """The gradients in a dense bucket, each as numbers that lie side by side in its buffer.

    What torch says of complex gradients, two numbers for each element, and of gradients that it does not lay out row by
    row is not where they are: then they are cut from the buffer here.
    """
    gradients, buffer = bucket.gradients(), bucket.buffer()
    if sum(one.numel() for one in gradients) == buffer.numel() and all(one.is_contiguous() for one in gradients):
        return gradients
    shapes = [
        (*parameter.shape, 2) if parameter.is_complex() and not buffer.is_complex() else tuple(parameter.shape)
        for parameter in bucket.parameters()
    ]
    parts = buffer.split([torch.Size(shape).numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def wire_of(gradient: Gradient, codec: str) -> str | None:
    """The dtype in which the values of a sparse gradient travel; None: their own. Casts are all that it can take."""
    return sparse.wire_dtype(gradient.tensor, codec) if codecs.is_cast(codec) else None
