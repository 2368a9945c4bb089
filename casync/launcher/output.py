"""Output of many ranks on one terminal: whole lines, each with `[rank]<stdout>: ` before it.

With timestamps the time stands before that. Rank 0 may draw a progress bar: its carriage returns pass, and the bar's
line is closed before another rank writes. The other ranks' redrawn lines appear once, as a terminal would show them at
the end.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LinePrinter"]

_LONGEST = 1 << 20  # a line without end is cut here, so that a rank which never ends one costs no memory
_ERASE_LINE = b"\x1b[2K"


class LinePrinter:
    """Turns pieces of output into prefixed lines. `write(stream, data)` gets stream "stdout" or "stderr".

    `clock`, if given, is asked for the text that stands before each line.
    """

    def __init__(self, write: Callable[[str, bytes], None], clock: Callable[[], str] | None = None) -> None:
        self._write = write
        self._clock = clock
        self._partial: dict[tuple[int, str], bytes] = {}
        self._open: tuple[int, str] | None = None  # whose unfinished line the cursor stands in

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Output of one rank, cut anywhere."""
        key = (rank, stream)
        text = self._partial.pop(key, b"") + data.replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")  # its \n may follow in the next piece
        *lines, rest = text.split(b"\n")
        for line in lines:
            self._line(key, line)
        if rank == 0 and b"\r" in rest and not held:
            self._redraw(key, rest.rpartition(b"\r")[2])
            rest = b"\r" + rest.rpartition(b"\r")[2]
        elif rank == 0 and held and rest.strip(b"\r"):
            self._redraw(key, rest.rstrip(b"\r").rpartition(b"\r")[2])
            rest = b"\r"
        if len(rest) > _LONGEST:
            self._line(key, rest)
            rest = b""
        if rest:
            self._partial[key] = rest

    def finish(self, rank: int) -> None:
        """This rank writes no more: end its last lines."""
        for stream in ("stdout", "stderr"):
            rest = self._partial.pop((rank, stream), b"")
            if rest.strip(b"\r") or self._open == (rank, stream):
                self._line((rank, stream), rest)

    def note(self, text: str) -> None:
        """Lines of the launcher itself, on stderr. They may quote a rank, whose words need not be text."""
        self._close_open(None)
        for line in text.splitlines():
            self._write("stderr", f"casyncrun: {line}\n".encode(errors="backslashreplace"))

    def raw(self, stream: str, data: bytes) -> None:
        """Output that is nobody's: mpirun's own."""
        self._close_open(None)
        self._write(stream, data)

    def _line(self, key: tuple[int, str], line: bytes) -> None:
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        if self._open == key and not shown:
            self._write(key[1], b"\n")  # a finished bar: the cursor only moves on
        else:
            start = b"\r" if self._open == key else b""
            self._close_open(key)
            self._write(key[1], start + self._prefix(key) + shown + b"\n")
        if self._open == key:
            self._open = None

    def _redraw(self, key: tuple[int, str], shown: bytes) -> None:
        self._close_open(key)
        erase = _ERASE_LINE if shown.startswith(_ERASE_LINE) else b""  # ours would be erased with the rest
        self._write(key[1], b"\r" + erase + self._prefix(key) + shown.removeprefix(erase))
        self._open = key

    def _close_open(self, key: tuple[int, str] | None) -> None:
        if self._open is not None and self._open != key:
            self._write(self._open[1], b"\n")
            self._open = None

    def _prefix(self, key: tuple[int, str]) -> bytes:
        return f"{self._clock() if self._clock else ''}[{key[0]}]<{key[1]}>: ".encode()
