"""Codec state for checkpoints: the residuals of this rank, by parameter name.

State belongs to the job: it is kept under names, not handles, so it survives a change of partitions, owners and
topology. It is each rank's own (a residual is what *this* rank has not yet sent), so nothing here communicates, and
`broadcast_*` never copies it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from casync.errors import InvalidArgumentError
from casync.session import Session

__all__ = ["STATE_KEY", "Claim", "collect", "restore"]

STATE_KEY = "casync"
"""The key of codec state in an optimizer's state_dict."""

_FORMAT = 1
_LOG = logging.getLogger("casync")


class Claim:
    """One optimizer's right to the residuals of its names, until another optimizer takes one of them."""

    def __init__(self) -> None:
        self._lost = ""

    def take(self, session: Session, tensors: Collection[str]) -> None:
        """Take `tensors` over; their residuals start at zero. Nothing of these names may be outstanding."""
        for tensor in tensors:
            if (other := session.claims.get(tensor)) is not None:
                other._lost = tensor
            session.claims[tensor] = self
        _clear(session, tensors)

    def check(self) -> None:
        """Raise `InvalidArgumentError` if a later optimizer has a name of ours: they would feed on each other's
        residuals.
        """
        if self._lost:
            raise InvalidArgumentError(
                f"tensor {self._lost} belongs to a DistributedOptimizer that was made later, and both compress: give "
                "their parameters different names, e.g. named_parameters=model.named_parameters(prefix='generator')"
            )


def collect(session: Session, names: Mapping[str, str]) -> dict[str, Any]:
    """The residuals of the tensors in `names` (parameter name -> tensor name), as float32 numpy vectors, with whose
    they are.

    Nothing may be outstanding. Names without a residual, because they go uncompressed, are left out.
    """
    known = set(session.core.residual_names())
    residuals = {name: session.core.residual(tensor) for name, tensor in names.items() if tensor in known}
    return {"format": _FORMAT, "rank": session.rank, "size": session.size, "residuals": residuals}


def restore(session: Session, names: Mapping[str, str], state: Mapping[str, Any] | None) -> None:
    """Put back what `collect` gave; names that it does not hold start at zero. Nothing may be outstanding.

    State of another rank or of a world of another size is not this rank's: residuals then start at zero, with one
    warning, and training goes on without what had not been sent when the checkpoint was made.
    """
    residuals: Mapping[str, Any] = {}
    if state is not None:
        if state.get("format") != _FORMAT:
            raise InvalidArgumentError(
                f"codec state of format {state.get('format')!r}; this version of CaSync reads format {_FORMAT}"
            )
        if (state["rank"], state["size"]) == (session.rank, session.size):
            residuals = state["residuals"]
        elif state["residuals"]:
            _LOG.warning(
                "the checkpoint holds the residuals of rank %d of %d, and this is rank %d of %d: residuals start at "
                "zero here. To continue exactly, save a checkpoint on every rank and load each rank's own",
                state["rank"],
                state["size"],
                session.rank,
                session.size,
            )
    if unknown := sorted(set(residuals) - set(names)):
        raise InvalidArgumentError(f"codec state of parameters that are not in this optimizer: {', '.join(unknown)}")
    _clear(session, names.values())
    for name, values in residuals.items():
        session.core.set_residual(names[name], values)


def _clear(session: Session, tensors: Collection[str]) -> None:
    # A residual of no length: the core starts it at zero when it is next needed.
    for tensor in set(tensors).intersection(session.core.residual_names()):
        session.core.set_residual(tensor, ())
