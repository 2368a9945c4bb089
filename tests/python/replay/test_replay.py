"""Event logs of real sessions, replayed by the command."""

from __future__ import annotations

import numpy as np
import pytest

from casync import _core, cli

ALLREDUCE, FLOAT32, AVERAGE = 0, 0, 0


@pytest.fixture
def log(tmp_path):
    """The log of a world of one that did a few steps."""
    session = _core.Session(None, {"event_log": str(tmp_path / "log")}, lambda level, text, fields: None)
    name = session.define("w", ALLREDUCE, FLOAT32, AVERAGE, 5000, 1, dims="(5000,)", compression="onebit", site="here")
    values = np.ones(5000, np.float32)
    for _ in range(3):
        session.synchronize(session.submit(name, values.ctypes.data, values.ctypes.data, 0, True))
    session.shutdown()
    return tmp_path / "log"


def test_a_log_replays_to_the_same_actions(log, capsys):
    assert cli.main(["replay", str(log)]) == 0
    assert "all the same" in capsys.readouterr().out


def test_a_changed_log_names_the_first_difference(log, capsys):
    rows = (5000).to_bytes(8, "little")  # where the tensor is defined; one without elements needs no tasks
    log.write_bytes(log.read_bytes().replace(rows, bytes(8), 1))
    assert cli.main(["replay", str(log)]) == 1
    assert "differs at record" in capsys.readouterr().out


def test_what_is_no_log_is_refused(tmp_path, capsys):
    (tmp_path / "text").write_text("no log at all, but long enough to look at")
    assert cli.main(["replay", str(tmp_path / "text"), str(tmp_path / "absent")]) == 1
    assert "is not an event log" in capsys.readouterr().err
