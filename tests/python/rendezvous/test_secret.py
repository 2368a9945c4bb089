"""Where the secret of a job comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.errors import InvalidArgumentError
from casync.launcher.rank.wire import JOB_SECRET
from casync.rendezvous.secret import FILE, VARIABLE, job_secret

GIVEN = "0123456789abcdef"


def test_it_is_in_a_variable_or_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{GIVEN}\n")
    assert job_secret({}) == b""
    assert job_secret({FILE: str(tmp_path / "secret")}) == GIVEN.encode()
    assert job_secret({VARIABLE: "x" * 16, FILE: str(tmp_path / "secret")}) == b"x" * 16


def test_what_is_none_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{VARIABLE}: the secret has 8 bytes; it must have 16 to") as raised:
        job_secret({VARIABLE: "hunter22"})
    assert "hunter22" not in str(raised.value)
    with pytest.raises(InvalidArgumentError, match=f"{FILE}='.*none': No such file"):
        job_secret({FILE: str(tmp_path / "none")})
    (tmp_path / "bytes").write_bytes(b"\xff" * 32)
    with pytest.raises(InvalidArgumentError, match="text in UTF-8"):
        job_secret({FILE: str(tmp_path / "bytes")})


def test_casyncrun_knows_the_names() -> None:
    assert JOB_SECRET == (VARIABLE, FILE)
