"""`casync compll` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync import cli
from casync.compll.library import library_files

ONEBIT = library_files()["onebit"]


def test_check_says_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "check", str(ONEBIT)]) == 0
    said = capsys.readouterr().out
    assert "reencode; feedback wrapper; fixed size: float, float, uint1* of gradient.size elements" in said


def test_check_shows_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.cll"
    file.write_text(ONEBIT.read_text(encoding="utf-8").replace("reduce(bits, add)", "reduce(bit, add)"))
    assert cli.main(["compll", "check", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"{file}:24:30: undefined name `bit`" in said and "^^^" in said and "expected:" in said


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "check", "nowhere.cll"]) == 1
    assert "nowhere.cll" in capsys.readouterr().err


def test_fmt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loose.cll"
    good = ONEBIT.read_text(encoding="utf-8")
    file.write_text(good.replace("    ", "\t"), encoding="utf-8")
    assert cli.main(["compll", "fmt", "--check", str(file)]) == 1
    assert "not formatted" in capsys.readouterr().err
    assert cli.main(["compll", "fmt", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == good
    assert cli.main(["compll", "fmt", "--check", str(file)]) == 0


def test_a_full_disk_does_not_cost_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loose.cll"
    loose = ONEBIT.read_text(encoding="utf-8").replace("    ", "\t")
    file.write_text(loose, encoding="utf-8")
    write = Path.write_text

    def half(path: Path, text: str, **given: str) -> int:
        write(path, text[: len(text) // 2], **given)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    assert cli.main(["compll", "fmt", str(file)]) == 1
    assert file.read_text(encoding="utf-8") == loose and [*tmp_path.iterdir()] == [file]


def test_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["algorithm", "logic", "paper", "functions", "paper", "declared", "limit"]
    assert any(line.startswith("onebit") and "1x kept" in line for line in lines)
    long = tmp_path / "tbq.cll"
    text = library_files()["tbq"].read_text(encoding="utf-8")
    long.write_text(text.replace("    aggregate(tau, mean);", "    aggregate(tau, mean);\n" + "    tau = tau;\n" * 3))
    assert cli.main(["compll", "count", str(long)]) == 1
    assert "EXCEEDED" in capsys.readouterr().out
