"""Lines of many ranks on one terminal."""

from __future__ import annotations

import pytest

from casync.launcher.output import LinePrinter


@pytest.fixture
def screen() -> list[tuple[str, bytes]]:
    return []


@pytest.fixture
def printer(screen: list[tuple[str, bytes]]) -> LinePrinter:
    return LinePrinter(lambda stream, data: screen.append((stream, data)))


def text(screen: list[tuple[str, bytes]]) -> bytes:
    return b"".join(data for _, data in screen)


def test_lines_are_whole_and_prefixed_however_they_are_cut(
    printer: LinePrinter, screen: list[tuple[str, bytes]]
) -> None:
    for piece in (b"he", b"llo\nwor", b"ld\n"):
        printer.feed(2, "stdout", piece)
    assert screen == [("stdout", b"[2]<stdout>: hello\n"), ("stdout", b"[2]<stdout>: world\n")]


def test_stdout_and_stderr_stay_apart(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    printer.feed(1, "stdout", b"a")
    printer.feed(1, "stderr", b"b\n")
    printer.finish(1)
    assert screen == [("stderr", b"[1]<stderr>: b\n"), ("stdout", b"[1]<stdout>: a\n")]


def test_a_progress_bar_of_rank_0_is_redrawn_at_once(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    for piece in (b"\r10%", b"\r20%", b"\r100%\n"):
        printer.feed(0, "stderr", piece)
    assert text(screen) == b"\r[0]<stderr>: 10%\r[0]<stderr>: 20%\r[0]<stderr>: 100%\n"


def test_a_bar_with_trailing_returns_is_redrawn_too(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    for piece in (b"10%\r", b"20%\r", b"\n"):
        printer.feed(0, "stderr", piece)
    assert text(screen) == b"\r[0]<stderr>: 10%\r[0]<stderr>: 20%\n"


def test_the_prefix_survives_a_bar_that_erases_its_line(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    printer.feed(0, "stdout", b"\r\x1b[2K10%")
    assert text(screen) == b"\r\x1b[2K[0]<stdout>: 10%"


def test_another_ranks_line_closes_the_bars_line_first(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    printer.feed(0, "stderr", b"\r10%")
    printer.feed(3, "stdout", b"hi\n")
    printer.feed(0, "stderr", b"\r20%")
    printer.finish(0)
    assert text(screen) == b"\r[0]<stderr>: 10%\n[3]<stdout>: hi\n\r[0]<stderr>: 20%\r[0]<stderr>: 20%\n"


def test_bars_of_other_ranks_appear_once(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    printer.feed(1, "stderr", b"\r10%")
    printer.feed(1, "stderr", b"\r20%\n")
    assert text(screen) == b"[1]<stderr>: 20%\n"


def test_windows_line_ends_are_no_bars(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    for piece in (b"a\r\nb\r", b"\nc\n"):
        printer.feed(0, "stdout", piece)
    assert text(screen).replace(b"\r", b"").splitlines()[-1] == b"[0]<stdout>: c"
    assert text(screen).count(b"[0]<stdout>: a\n") == 1


def test_a_line_without_end_is_cut(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    for _ in range(17):
        printer.feed(1, "stdout", b"x" * (1 << 16))
    assert len(screen) == 1


def test_the_time_stands_before_each_line(screen: list[tuple[str, bytes]]) -> None:
    times = iter(["one ", "two "])
    printer = LinePrinter(lambda stream, data: screen.append((stream, data)), lambda: next(times))
    printer.feed(1, "stdout", b"a\nb\n")
    assert text(screen) == b"one [1]<stdout>: a\ntwo [1]<stdout>: b\n"


def test_a_note_with_what_is_no_letter_is_written(printer: LinePrinter, screen: list[tuple[str, bytes]]) -> None:
    printer.note("rank 1 failed: \ud800")
    assert screen == [("stderr", b"casyncrun: rank 1 failed: \\ud800\n")]
