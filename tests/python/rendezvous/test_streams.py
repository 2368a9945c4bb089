"""Connections of a pair of ranks, by the round trip between them."""

from __future__ import annotations

import pytest

from casync.rendezvous.pacing import Pacing, pacing


@pytest.mark.parametrize(("rtt_s", "may_bbr", "expected"), [
    (0.0, True, Pacing(1, "")),
    (0.0005, True, Pacing(1, "")),
    (0.05, True, Pacing(4, "bbr")),
    (0.05, False, Pacing(8, "")),
])  # fmt: skip
def test_by_itself(rtt_s: float, may_bbr: bool, expected: Pacing) -> None:
    assert pacing(rtt_s, may_bbr=may_bbr) == expected


def test_what_the_user_says_wins() -> None:
    assert pacing(0.05, may_bbr=True, streams=3) == Pacing(3, "bbr")
    assert pacing(0.05, may_bbr=True, congestion="system") == Pacing(8, "")
    assert pacing(0.0, may_bbr=False, streams=2, congestion="reno") == Pacing(2, "reno")
