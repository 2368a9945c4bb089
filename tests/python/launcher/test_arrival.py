"""Waiting in init() where no casyncrun hears of it: each rank warns for itself."""

from __future__ import annotations

import time

import pytest

from casync.config.settings import Config
from casync.rendezvous import init_wait as arrival
from casync.rendezvous import launcher_pipe as report


def test_a_rank_without_casyncrun_warns_for_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "is_heard", lambda: False)
    config = Config(stall_warning_s=0.05, timeout_s=60.0)
    with arrival.waiting("key", [0, 1], config, "ranks [0, 1] must call it"):
        time.sleep(0.5)
    with arrival.waiting("other", [0, 1], Config(stall_warning_s=50.0, timeout_s=60.0), "nobody waits long"):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "init() has waited 0.05 s: ranks [0, 1] must call it. casyncrun would say who is missing"
    ]
