"""The adaptors for Lightning, Accelerate and Transformers, in jobs of two ranks that torchrun starts."""

from __future__ import annotations

import importlib.util
import json
import shutil
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


def test_transformers_takes_what_codecs_keep_from_the_checkpoint_that_is_resumed(tmp_path: Path) -> None:
    """And not from a folder of the same name where it writes its own."""
    trained(tmp_path, "transformers", "onebit")
    (checkpoint,) = tmp_path.rglob("checkpoint-40")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(checkpoint, elsewhere)
    (checkpoint / "casync" / "casync.json").write_text("{}")
    note, said = trained(tmp_path, "transformers", "onebit", "resume", str(elsewhere))
    assert "begins anew" not in said
    assert note["loss"] < 1.0


def test_residuals_follow_the_scale_of_accelerates_scaler(tmp_path: Path) -> None:
    """Scales are powers of two, so a training with a scaler is the same bit for bit."""
    plain, _ = trained(tmp_path, "accelerate", "onebit")
    scaled, said = trained(tmp_path, "accelerate", "onebit", "scaler")
    assert scaled["loss"] == plain["loss"]
    assert "GradScaler" not in said


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_accelerate_prepares_two_models_whose_parameters_have_the_same_names(tmp_path: Path, codec: str) -> None:
    note, _ = trained(tmp_path, "accelerate", codec, "two")
    assert note["loss"] < 1.0


def test_lightning_has_room_for_one_hook() -> None:
    pytest.importorskip("lightning")
    import casync.lightning

    from casync.errors import InvalidArgumentError

    with pytest.raises(InvalidArgumentError, match="ddp_comm_hook: DDP takes one hook"):
        casync.lightning.CasyncStrategy(ddp_comm_hook=print)


def test_lightning_in_several_ways(tmp_path: Path) -> None:
    """Two optimizers by hand, accumulation, fit() twice, from a checkpoint too, and the codec by CASYNC_COMPRESSION."""
    pytest.importorskip("lightning")
    done = torchrun(tmp_path, 2, str(HERE / "lightning_situations.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("NOTE "))
    note: dict[str, Any] = json.loads(line.removeprefix("NOTE "))
    assert note.pop("alike")
    assert "fp16" in note.pop("by the variable")
    assert note == pytest.approx(dict.fromkeys(note, 0.0), abs=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_local_sgd_and_diloco_are_as_simulated(tmp_path: Path, library: str) -> None:
    """With accumulation, and from a checkpoint bit for bit: each script notes how far it is from what it should be."""
    pytest.importorskip(library)
    done = torchrun(tmp_path, 2, str(HERE / f"relaxed_{library}.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("NOTE "))
    note: dict[str, Any] = json.loads(line.removeprefix("NOTE "))
    assert note == pytest.approx(dict.fromkeys(note, 0.0), abs=1e-5)
    assert "begin anew" not in done.stderr
    exact = {"resumed", "not alike", "a checkpoint has what validation saw"}
    assert not any(note[name] for name in exact & note.keys())
