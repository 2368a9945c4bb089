"""How the gradients of one optimizer are synchronised: the arguments of `DistributedOptimizer`, checked."""

from __future__ import annotations

from typing import Any

from casync import codecs, default, terms
from casync.errors import InvalidArgumentError
from casync.terms import Average

from .compression import Compression
from .loss_scale import LossScale
from .parameter_groups import wanted_groups

__all__ = ["Settings", "positive"]


class Settings:
    """Raises `InvalidArgumentError` for what cannot be, and before `init()`."""

    def __init__(
        self, compression: Any, topology: str | None, op: int, predivide: float, passes: int,
        momentum: float | None, num_groups: int, groups: Any, sparse_as_dense: bool, process_set: Any,
        grad_scaler: Any,
    ) -> None:  # fmt: skip
        self.passes = positive(passes)
        if predivide != 1.0 and op != Average:
            raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
        self.groups = wanted_groups(num_groups, groups)
        config = default.session().config
        # Compression.none is the default argument, so it stands for "not said"; the string says it.
        given = None if compression is Compression.none else compression
        self.rules = codecs.rules_of(config.compression if given is None else given)
        self.topology = config.topology if topology is None else topology
        self.op = terms.resolve_op(op, None)
        self.predivide = predivide
        self.momentum = momentum
        self.sparse_as_dense = sparse_as_dense
        self.process_set = default.checked(process_set)
        self.loss_scale = LossScale(grad_scaler, self.rules)

    @property
    def is_distributed(self) -> bool:
        """False in a world of one, and outside the process set: then there are no hooks."""
        return bool(self.process_set.included()) and default.session_of(self.process_set).size > 1

    @property
    def takes_momentum(self) -> bool:
        """Whether some codec takes over the optimizer's momentum."""
        return any(codecs.takes_momentum(codec) for _, codec in self.rules.pairs)

    @property
    def keeps_something(self) -> bool:
        """Whether something is kept under the names of parameters: residuals, state, or the steps that random numbers
        hang on. Casts keep nothing.
        """
        return any(codec != "none" and not codecs.is_cast(codec) for _, codec in self.rules.pairs)


def positive(passes: int) -> int:
    if passes <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    return passes
