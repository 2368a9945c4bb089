"""Lines of a rank to casyncrun's wrapper, which several threads write into one pipe."""

from __future__ import annotations

import json
import os
import select

import pytest

from casync.rendezvous import launcher_pipe as report


@pytest.mark.parametrize("letter", ["a", "\n", '"', "ü", "中", "🙂"])
def test_a_line_is_short_enough_to_stay_whole(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = os.pipe()
    monkeypatch.setenv("CASYNC_REPORT_FD", str(target))
    for say in (report.failing, report.gave_up, lambda text: report.unreachable(1, text)):
        say(letter * 5000)
        line = os.read(source, 1 << 20)
        assert len(line) <= select.PIPE_BUF
        told = next(value for value in json.loads(line).values() if isinstance(value, str))
        assert set(told) == {letter} and len(told) * len(json.dumps(letter)[1:-1]) > 1980
        say("short " + letter)
        assert ("short " + letter) in json.loads(os.read(source, 1 << 20)).values()
    os.close(source)
    os.close(target)
