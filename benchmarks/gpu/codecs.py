"""Codecs on a GPU: `gpu_codecs` (codecs.cc) runs ours, and the same algorithms run in torch operations."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from casync import _core
from casync.codecs import device_code
from casync.compll.cuda.texts import COMMON, text_of

__all__ = ["CODECS", "GROUP", "TENSORS", "in_torch", "lines"]

CODECS = ("onebit", "terngrad(bits=2)", "graddrop", "threelc")
TENSORS = (1, 38, 399)
"""In as many tensors the same bytes are divided."""
GROUP = 4096
"""Elements of a row in torch, of which there must be whole ones."""


def lines(program: Path, codec: str, elements: int, repeats: int) -> Iterator[dict[str, Any]]:
    """What `program` measures for each of TENSORS, as it ends. Raises CalledProcessError if it fails."""
    major, minor = _core.cuda_facts()["devices"][0]["capability"]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name in (COMMON, codec.partition("(")[0]):
            files.append(Path(folder) / name)
            files[-1].write_bytes(device_code.cubin_of(text_of(name), f"sm_{major}{minor}"))
        command = [*map(str, (program, codec, *files, repeats, elements, *TENSORS))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            yield from map(json.loads, running.stdout)
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, command)


def in_torch(codec: str, elements: int, repeats: int) -> dict[str, float]:
    """Seconds of the same in torch operations, of one tensor; empty without a torch for this device."""
    try:
        import torch

        from benchmarks.codec_speed.torch_reference import REFERENCES
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    with torch.device("cuda"):
        reference = REFERENCES[codec]((elements // GROUP, GROUP))
        gradient, total = torch.randn(elements) ** 3, torch.zeros(elements)
        payload: Any = None

        def encode() -> None:
            nonlocal payload
            payload = reference.encode(gradient)

        def seconds_of(work: Callable[[], None]) -> float:
            seconds = []
            for _ in range(repeats + 1):
                begin = time.perf_counter()
                work()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begin)
            return median(seconds[1:])

        return {"encode_s": seconds_of(encode), "merge_s": seconds_of(lambda: reference.merge(payload, total))}
