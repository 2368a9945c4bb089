"""Each rank's output in files of its own: DIR/rank.R/stdout and DIR/rank.R/stderr, R padded so that they sort."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

__all__ = ["RankFiles"]


class RankFiles:
    """Opens all files at once, so that a folder which cannot be written is an OSError before the job starts."""

    def __init__(self, folder: str, size: int) -> None:
        self._stack = ExitStack()
        self._files = {}
        for rank in range(size):
            own = Path(folder) / f"rank.{rank:0{len(str(size - 1))}}"
            own.mkdir(parents=True, exist_ok=True)
            for stream in ("stdout", "stderr"):
                self._files[rank, stream] = self._stack.enter_context(open(own / stream, "wb", buffering=0))

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Write what the rank wrote into its file, as it wrote it."""
        self._files[rank, stream].write(data)

    def close(self) -> None:
        """Close all files."""
        self._stack.close()
