"""One rank of a job that runs programs, one after the other: `job.py FOLDER`.

FOLDER/cells.json says which. What comes of each is a line of FOLDER/rank0.jsonl and so on, and its numbers are a file
of NumPy's beside it. A rank whose program failed ends once all have written their lines: what it left behind is not
to disturb the next program.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[3]))  # behind what is installed

from tests.python.programs.cells import CELLS, Cell

FEEDBACK = "always(onebit)"
WITH_LEDGER = ("optimizer", "hook", "backend", "fsdp2", "local")
"""Doors at which a second run, with a codec that has feedback, is worth its time: there it is counted what was given
and what was applied. The libraries go through these doors, and the codecs of other frameworks have tests of their own.
"""
ANEW = 3
"""Exit status: the cells after this one want new processes."""


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._lines = 0

    def write(self, line: dict[str, Any]) -> None:
        with open(self._report(self.rank), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _report(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.jsonl"

    def agree(self, line: dict[str, Any]) -> bool:
        """Write a result, wait for those of the other ranks, and say whether all of them may go on."""
        self.write(line)
        self._lines += 1
        ends = []
        for rank in range(self.size):
            found: list[dict[str, Any]] = []
            while len(found) < self._lines:
                time.sleep(0.002)
                text = self._report(rank).read_text(encoding="utf-8") if self._report(rank).exists() else ""
                found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
                found = [line for line in found if line["what"] == "end"]
            ends.append(found[self._lines - 1])
        return all(end["goes_on"] for end in ends)

    def run(self, number: int, asked: dict[str, Any], cell: Cell, codec: str) -> bool:
        """One program with one codec. Whether the next one may follow in these processes."""
        doors = importlib.import_module(f"tests.python.programs.doors_{asked['family']}")
        self.write({"what": "begin", "cell": number, "codec": codec})
        end = {"what": "end", "cell": number, "codec": codec, "goes_on": True}
        arrays: dict[str, Any] = {}
        door, began = None, time.process_time()
        try:
            if asked["verdict"] != "refused" and (codec == "none" or cell.codec == "exact"):
                with doors.reference(cell.beside, self, asked["door"]) as plain:
                    arrays |= {f"wanted/{name}": values for name, values in numbers(cell.program(plain)).items()}
            end["stage"] = "program"
            door = doors.door(asked["door"], self, codec)
            with door:
                arrays |= {f"got/{name}": values for name, values in numbers(cell.program(door)).items()}
                if cell.codec == "mass" and hasattr(door, "ledger"):
                    arrays |= door.ledger()
        except BaseException as error:
            end |= {"error": type(error).__name__, "says": str(error), "trace": traceback.format_exc()}
            end["goes_on"] = asked["verdict"] == "refused" and bool(re.fullmatch(asked["error"], type(error).__name__))
        end["seconds"] = time.process_time() - began
        end["batches"] = getattr(door, "taken", 0)
        np.savez(self.folder / f"{number}.{codec == FEEDBACK:d}.{self.rank}.npz", **arrays)
        return self.agree(end)

    def end(self, number: int, asked: dict[str, Any], cell: Cell) -> None:
        """By a program that fails: its errors go where those of a script go."""
        self.write({"what": "begin", "cell": number, "codec": "none"})
        doors = importlib.import_module(f"tests.python.programs.doors_{asked['family']}")
        cell.program(doors.door(asked["door"], self, "none").__enter__())
        raise AssertionError("nothing has failed")


def numbers(result: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of what a program returns: tensors of any framework, numbers, or lists of these."""
    found = {}
    for name, value in result.items():
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
            value = value.numpy()
        elif hasattr(value, "asnumpy"):
            value = value.asnumpy()
        if isinstance(value, list) and value and hasattr(value[0], "detach"):
            value = [float(one) for one in value]
        array = np.array(value)
        found[name] = array if array.dtype.kind == "f" else array.astype(float)
    return found


def main(folder: Path) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    job = Job(folder)
    for number, asked in enumerate(json.loads((folder / "cells.json").read_text())):
        importlib.import_module(f"tests.python.programs.{asked['module']}")
        cell = CELLS[asked["situation"], asked["door"]]
        if asked["apart"]:
            job.end(number, asked, cell)
        again = cell.codec == "exact" or (cell.codec == "mass" and asked["door"] in WITH_LEDGER)
        for codec in ("none", FEEDBACK) if again else ("none",):
            if not job.run(number, asked, cell, codec):
                return ANEW
    return 0


if __name__ == "__main__":
    status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo may hang an interpreter that goes on to its end
