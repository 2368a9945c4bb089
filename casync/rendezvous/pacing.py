"""How many connections carry the bodies of a pair of ranks, and how TCP paces them. Pure.

What one connection carries is bounded by its window per round trip, and, where packets get lost and congestion control
takes that for congestion, by 1.2 packets per round trip over the root of the loss (Mathis and others, 1997). On a long
round trip several connections carry as many times more. `bbr` is not misled by a loss.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOST_STREAMS", "Pacing", "pacing"]

_FAR_S = 0.005
"""From this round trip on hosts are taken for distant: no network of one site has it."""
_STREAMS_FAR = 8
_STREAMS_FAR_BBR = 4
MOST_STREAMS = _STREAMS_FAR
"""The most streams that `pacing` chooses by itself."""


@dataclass(frozen=True)
class Pacing:
    """`streams`, and the name of the congestion control; empty: that of the system."""

    streams: int
    congestion: str


def pacing(rtt_s: float, *, may_bbr: bool, streams: int = 0, congestion: str = "auto") -> Pacing:
    """Choose for a connection of this round trip, 0 inside a host. `may_bbr`: the kernel lets this process choose bbr.
    `streams` and `congestion` are what the user asked for; 0 and "auto": nothing.
    """
    is_far = rtt_s >= _FAR_S
    if congestion == "auto":
        chosen = "bbr" if is_far and may_bbr else ""
    else:
        chosen = "" if congestion == "system" else congestion
    if streams == 0:
        streams = 1 if not is_far else _STREAMS_FAR_BBR if chosen == "bbr" else _STREAMS_FAR
    return Pacing(streams, chosen)
