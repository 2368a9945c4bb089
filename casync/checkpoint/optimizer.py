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
from casync.session.session import Session

__all__ = ["STATE_KEY", "collect", "converted", "restore", "take_pending"]

STATE_KEY = "casync"
"""The key of codec state in an optimizer's state_dict."""

_FORMAT = 2  # 1 had no "states"
_LOG = logging.getLogger("casync")


def collect(session: Session, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what is kept of the tensors in `names` (parameter name -> tensor name), and which rank kept it. Residuals
    and state arrays are float32 numpy vectors.

    Nothing may be outstanding. Names of which nothing is kept, because they go uncompressed, are left out.
    """
    kept = session.codec_states
    with_residual, with_state = kept.residual_names(), kept.state_names()
    return {
        "format": _FORMAT,
        "rank": session.rank,
        "size": session.size,
        "residuals": {name: kept.residual(tensor) for name, tensor in names.items() if tensor in with_residual},
        "states": {name: kept.state(tensor) for name, tensor in names.items() if tensor in with_state},
        "fallbacks": {name: kept.fallbacks[tensor] for name, tensor in names.items() if tensor in kept.fallbacks},
        "unsent": [name for name, tensor in names.items() if tensor in kept.unsent],
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
    checkpoint was made. Codecs that a monitor has chosen are the same on all ranks, and hold.
    """
    residuals: Mapping[str, Any] = {}
    states: Mapping[str, Any] = {}
    fallbacks: Mapping[str, str] = {}
    unsent: Collection[str] = ()
    if state is not None:
        if state.get("format") not in (1, _FORMAT):
            raise InvalidArgumentError(
                f"codec state of format {state.get('format')!r}; this version of CaSync reads formats 1 and {_FORMAT}"
            )
        residuals, states, fallbacks = state["residuals"], state.get("states", {}), state.get("fallbacks", {})
        unsent = state.get("unsent", ())
    if unknown := sorted({*residuals, *states, *fallbacks} - set(names)):
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
    if state is None and not session.codec_states.names().isdisjoint(names.values()):
        _LOG.warning(
            "what was loaded holds no codec state: residuals start anew. If casync.load_state() had put them there, "
            "call it after the optimizer's load_state_dict()"
        )
    session.codec_states.forget(names.values())
    for name, values in residuals.items():
        session.codec_states.set_residual(names[name], values)
    for name, kept in states.items():
        session.codec_states.set_state(names[name], kept)
    fallen = {names[name]: codec for name, codec in fallbacks.items()}
    session.codec_states.fall_back(fallen, {names[name] for name in unsent if name in names})


def take_pending(session: Session, tensor: str, numel: int) -> np.ndarray[Any, Any]:
    """Take the part of a tensor's gradients that this rank has not sent, as a float32 vector. Nothing of it is left."""
    kept = session.codec_states
    total = np.zeros(numel, np.float32)
    if tensor in kept.residual_names():
        total += kept.residual(tensor)
        kept.set_residual(tensor, np.zeros_like(total))
    if tensor in kept.state_names():
        state = kept.state(tensor)
        for array in state["arrays"].values():
            if array["pending"]:
                total += array["values"]
                array["values"] = np.zeros_like(array["values"])
        kept.set_state(tensor, state)
    return total


def _shared_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {**kept, "arrays": {name: array for name, array in kept["arrays"].items() if array["shared"]}}
