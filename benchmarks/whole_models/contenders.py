"""The ways that are compared, as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AGAIN", "ALONE", "BESIDE", "LISTS", "ROUTES", "SAVED", "Contender", "sleeping"]

ALONE = "no communication"
AGAIN = "none again"
"""How far this is from `none` is the noise."""


@dataclass(frozen=True)
class Contender:
    """A way to synchronise a model."""

    label: str
    compression: str
    topology: str = "auto"


SAVED = (Contender("auto", "auto"), Contender("covap", "covap(fp16)"))
"""The plans of these are saved, and executed beside `BESIDE`."""
BESIDE = (
    Contender(ALONE, ""),
    Contender("none", "none"),
    Contender(AGAIN, "none"),
    Contender("fp16", "fp16"),
    Contender("onebit", "onebit"),
)
_TOPK = "topk(ratio=0.01)"
LISTS = (
    Contender(ALONE, ""),
    *(Contender(f"{_TOPK} by {topology}", _TOPK, topology) for topology in (
        "ps", "ring", "two_level", "two_level(ring)", "two_level(direct)",
        "phases(intra reduce_scatter, inter gather coded, inter broadcast coded, intra allgather)",
        "phases(intra alltoall coded, inter gather coded, inter broadcast coded, intra allgather)",
    )),
    Contender(f"{_TOPK} by ps again", _TOPK, "ps"),
)  # fmt: skip
"""Lists of phases that the simulator finds to be quicker than every topology with a name, and those topologies."""


ROUTES = (
    Contender(ALONE, ""),
    *(
        Contender(f"{codec} by {topology}", codec, topology)
        for codec in ("none", "int4", "onebit")
        for topology in ("ps", "ring", "direct")
        if (codec, topology) != ("none", "direct")
    ),
    Contender("none by ps again", "none", "ps"),
)
"""Topologies with a name, for what the simulator says of them."""


def sleeping(interval: int) -> tuple[Contender, ...]:
    """COVAP without a codec, with this interval and with the one that it finds, beside steps without communication."""
    given = f"covap(none, interval={interval})"
    return Contender(ALONE, ""), Contender(given, given), Contender("covap(none)", "covap(none)")
