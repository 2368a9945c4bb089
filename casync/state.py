"""Codec state for checkpoints: the residuals of this rank and the state arrays of its codecs, by parameter name.

State belongs to the job: it is kept under names, not handles, so it survives a change of partitions, owners and
topology. It is each rank's own (a residual is what *this* rank has not yet sent), so nothing here communicates, and
`broadcast_*` never copies it. Some arrays are shared, and so is the count of a gradient's steps: those are the same on
every rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from casync.errors import InvalidArgumentError
from casync.session import Session

__all__ = ["STATE_KEY", "Claim", "collect", "converted", "restore", "take_pending"]

STATE_KEY = "casync"
"""The key of codec state in an optimizer's state_dict."""

_FORMAT = 2  # 1 had no "states"
_LOG = logging.getLogger("casync")


class Claim:
    """One optimizer's right to what is kept under its names, until another optimizer takes one of them."""

    def __init__(self) -> None:
        self._lost = ""

    def take(self, session: Session, tensors: Collection[str]) -> None:
        """Take `tensors` over; what is kept of them starts anew, unless it was loaded for us. Nothing of these names
        may be outstanding.
        """
        for tensor in tensors:
            if (other := session.claims.get(tensor)) is not None:
                other._lost = tensor
            session.claims[tensor] = self
        _forget(session, set(tensors) - session.loaded)
        session.loaded.difference_update(tensors)

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
    """What is kept of the tensors in `names` (parameter name -> tensor name), with whose it is: residuals and state
    arrays as float32 numpy vectors.

    Nothing may be outstanding. Names of which nothing is kept, because they go uncompressed, are left out.
    """
    core = session.core
    with_residual, with_state = set(core.residual_names()), set(core.state_names())
    return {
        "format": _FORMAT,
        "rank": session.rank,
        "size": session.size,
        "residuals": {name: core.residual(tensor) for name, tensor in names.items() if tensor in with_residual},
        "states": {name: core.state(tensor) for name, tensor in names.items() if tensor in with_state},
    }


def converted(state: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """`state` with every vector of numbers as `convert` makes it, for example a framework's tensor."""
    residuals = {name: convert(values) for name, values in state["residuals"].items()}
    states = {}
    for name, kept in state.get("states", {}).items():
        arrays = {key: {**array, "values": convert(array["values"])} for key, array in kept["arrays"].items()}
        states[name] = {**kept, "arrays": arrays}
    return {**state, "residuals": residuals, "states": states}


def restore(session: Session, names: Mapping[str, str], state: Mapping[str, Any] | None) -> None:
    """Put back what `collect` gave; names that it does not hold start anew. Nothing may be outstanding.

    State of another rank or of a world of another size is not this rank's: only what is shared is put back, other
    arrays and residuals start anew, with one warning, and training goes on without what had not been sent when the
    checkpoint was made.
    """
    residuals: Mapping[str, Any] = {}
    states: Mapping[str, Any] = {}
    if state is not None:
        if state.get("format") not in (1, _FORMAT):
            raise InvalidArgumentError(
                f"codec state of format {state.get('format')!r}; this version of CaSync reads formats 1 and {_FORMAT}"
            )
        residuals, states = state["residuals"], state.get("states", {})
    if unknown := sorted({*residuals, *states} - set(names)):
        raise InvalidArgumentError(f"codec state of parameters that are not in this optimizer: {', '.join(unknown)}")
    if state is not None and (state["rank"], state["size"]) != (session.rank, session.size):
        arrays = [array for kept in states.values() for array in kept["arrays"].values()]
        if residuals or not all(array["shared"] for array in arrays):
            _LOG.warning(
                "the checkpoint holds the residuals of rank %d of %d, and this is rank %d of %d: residuals start at "
                "zero here. To continue exactly, save a checkpoint on every rank and load each rank's own",
                state["rank"],
                state["size"],
                session.rank,
                session.size,
            )
        residuals, states = {}, {name: _shared_of(kept) for name, kept in states.items()}
    kept_now = {*session.core.residual_names(), *session.core.state_names()}
    if state is None and not kept_now.isdisjoint(names.values()):
        _LOG.warning(
            "what was loaded holds no codec state: residuals start anew. If casync.load_state() had put them there, "
            "call it after the optimizer's load_state_dict()"
        )
    _forget(session, names.values())
    for name, values in residuals.items():
        session.core.set_residual(names[name], values)
    for name, kept in states.items():
        session.core.set_state(names[name], kept)


def take_pending(session: Session, tensor: str, numel: int) -> np.ndarray[Any, Any]:
    """What of a tensor's gradients this rank has not sent, as a float32 vector; from now on that is nothing."""
    core = session.core
    total = np.zeros(numel, np.float32)
    if tensor in core.residual_names():
        total += core.residual(tensor)
        core.set_residual(tensor, np.zeros_like(total))
    if tensor in core.state_names():
        state = core.state(tensor)
        for array in state["arrays"].values():
            if array["pending"]:
                total += array["values"]
                array["values"] = np.zeros_like(array["values"])
        core.set_state(tensor, state)
    return total


def _shared_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {**kept, "arrays": {name: array for name, array in kept["arrays"].items() if array["shared"]}}


def _forget(session: Session, tensors: Collection[str]) -> None:
    kept = {*session.core.residual_names(), *session.core.state_names()}
    for tensor in kept.intersection(tensors):
        session.core.forget(tensor)
