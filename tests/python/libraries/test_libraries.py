"""The adaptors for Lightning, Accelerate and Transformers, in jobs of two ranks that torchrun starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.python.c10d.test_backend import torchrun

HERE = Path(__file__).parent
LIBRARIES = ("lightning", "accelerate", "transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def trained(folder: Path, library: str, codec: str, *words: str) -> tuple[dict[str, Any], str]:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = torchrun(folder, 2, str(HERE / f"with_{library}.py"), codec, str(folder / codec), *words)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("NOTE "))
    note: dict[str, Any] = json.loads(line.removeprefix("NOTE "))
    assert note["alike"]
    return note, done.stdout + done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_trains_as_well_with_fewer_bytes(tmp_path: Path, library: str) -> None:
    """And without CaSync the same script runs."""
    plain, _ = trained(tmp_path, library, "ddp")
    exact, _ = trained(tmp_path, library, "none")
    compressed, _ = trained(tmp_path, library, "onebit")
    assert exact["loss"] == pytest.approx(plain["loss"], rel=0.2, abs=0.02)
    assert compressed["loss"] < max(1.5 * exact["loss"], exact["loss"] + 0.1)
    assert compressed["sent"] < 0.5 * exact["sent"]


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_checkpoint_keeps_what_codecs_keep(tmp_path: Path, library: str) -> None:
    trained(tmp_path, library, "onebit")
    saved = [path for path in tmp_path.rglob("casync-*.npz")]
    assert len(saved) == 2, "a file for each rank"
    note, said = trained(tmp_path, library, "onebit", "resume")
    assert "begins anew" not in said
    assert note["loss"] < 1.0


def test_lightning_has_room_for_one_hook() -> None:
    pytest.importorskip("lightning")
    import casync.lightning

    from casync.errors import InvalidArgumentError

    with pytest.raises(InvalidArgumentError, match="ddp_comm_hook: DDP takes one hook"):
        casync.lightning.CasyncStrategy(ddp_comm_hook=print)
