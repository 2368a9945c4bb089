"""Ranks aggregate their gradients with a codec, by the calls that the runtime makes, and the error is measured.

The error is vNMSE, as in Vargaftik et al.: the squared distance from the mean of the gradients, divided by the squared
norm of that mean. Residuals are zero before.
"""

from __future__ import annotations

import numpy as np

from casync.compll.conformance.contract import Source
from casync.compll.conformance.rank import Rank
from casync.compll.conformance.subject import open_subject
from casync.compll.conformance.world import World, routes

__all__ = ["by_ring", "cut_off", "direct", "served", "vnmse"]


def vnmse(result: np.ndarray, gradients: np.ndarray) -> float:
    mean = gradients.mean(0, np.float64)
    return float(np.square(result - mean).sum() / np.square(mean).sum())


def _world(spec: str, gradients: np.ndarray, route: str) -> World:
    """Ranks that agree already, in one partition for each rank where an owner adds up."""
    workers, size = gradients.shape
    codec = open_subject(spec).make()
    cut = workers if route != "direct" and not codec.info.whole else 1
    return World(codec, (1, size), workers, route=route, cut=cut)


def direct(spec: str, gradients: np.ndarray) -> np.ndarray:
    """Every rank merges the payloads of all."""
    return _world(spec, gradients, "direct").step(list(gradients))[0]


def served(spec: str, gradients: np.ndarray) -> np.ndarray:
    """By a parameter server: owners decode, add up and encode the mean."""
    return _world(spec, gradients, routes(open_subject(spec).make())[-1]).step(list(gradients))[0]


def by_ring(spec: str, gradients: np.ndarray) -> np.ndarray:
    """By a ring: each partition goes from rank to rank, each of which adds its own and encodes the sum anew."""
    workers, size = gradients.shape
    codec = open_subject(spec).make()
    ranks = [Rank(codec, (1, size), rank, workers) for rank in range(workers)]
    parts = World(codec, (1, size), workers, cut=workers).partitions
    mean = {"mid": float(np.float32(1) / np.float32(workers))}
    results = []
    for first, part in enumerate(parts):
        order = [ranks[(first + hop) % workers] for hop in range(workers)]
        payload = order[0].encode(gradients[order[0].rank], part, 0)
        for hop, rank in enumerate(order[1:], start=2):
            sources = [Source(payload), rank.raw(gradients[rank.rank], part)]
            payload, result = rank.own(part, sources, 0, **(mean if hop == workers else {}))
        results.append(result)
    return np.concatenate(results)


def cut_off(spec: str, gradients: np.ndarray) -> float:
    """Which part of the sums a codec of saturating 8-bit sums cuts off."""
    world = _world(spec, gradients, "direct")
    world.step(list(gradients))
    payloads = np.stack([payload.view(np.int8) for payload in world.sent[-len(gradients) :]])
    return float((np.abs(payloads.sum(0, np.int32)) > np.iinfo(np.int8).max).mean())
