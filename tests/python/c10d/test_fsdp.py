"""`casync.torch.fsdp` in jobs that torchrun starts: how well they train, and what their checkpoints keep."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import casync.torch as hvd
import pytest
import torch
from casync.torch import fsdp

from tests.python.c10d.test_backend import torchrun

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Jobs:
    """Each is run once, for all tests that look at it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes: dict[tuple[str, ...], dict[str, Any]] = {}

    def trained(self, model: str, codec: str, reduce: str, ranks: int = 4, *more: str) -> dict[str, Any]:
        key = (model, codec, reduce, str(ranks), *more)
        if key not in self._notes:
            checkpoint = self._folder / f"{model} {codec} {reduce}"
            words = (str(HERE / "fsdp_training.py"), model, codec, reduce, str(checkpoint), *more)
            done = torchrun(self._folder, ranks, *words)
            assert done.returncode == 0, done.stderr
            self._notes[key] = json.loads(done.stdout)
        return self._notes[key]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("fsdp"))


@pytest.mark.parametrize(
    ("model", "codecs"), [("digits", ("onebit", "terngrad(bits=8)")), ("transformer", ("onebit",))]
)
def test_training_is_as_good_with_fewer_bytes(jobs: Jobs, model: str, codecs: tuple[str, ...]) -> None:
    exact = jobs.trained(model, "none", "shard")
    for codec in codecs:
        note = jobs.trained(model, codec, "shard")
        assert note["alike"]
        assert note["loss"] < exact["loss"] + 0.1, codec
        assert note["sent"] < 0.85 * exact["sent"], codec


@pytest.mark.parametrize("reduce", ["replicate", "both"])
def test_replicas_are_reduced_by_name(jobs: Jobs, reduce: str) -> None:
    note = jobs.trained("digits", "onebit", reduce)
    assert note["alike"]
    # What is compressed twice learns a little more slowly: every tensor of 500 elements and more is.
    more = 0.15 if reduce == "both" else 0.1
    assert note["loss"] < jobs.trained("digits", "none", "shard")["loss"] + more
    kinds = {name.partition(".")[0] for name, total in note["pending"].items() if total != 0}
    assert kinds == ({"replicate", "shard"} if reduce == "both" else {"replicate"})
    if reduce == "replicate":
        assert note["sent"] < 0.1 * note["numel"] * 4, "of what the all-reduce sends uncompressed"


def test_between_replicas_gradients_may_wait_for_a_later_step(jobs: Jobs) -> None:
    exact = jobs.trained("digits", "none", "replicate")
    note = jobs.trained("digits", "covap(none, interval=2)", "replicate")
    assert note["alike"]
    assert note["loss"] < exact["loss"] + 0.1
    assert note["sent"] < 0.6 * exact["sent"]
    assert {name.partition(".")[0] for name, total in note["pending"].items() if total != 0} == {"replicate"}


def test_shards_may_not_wait(tmp_path: Path) -> None:
    words = ("digits", "covap(none, interval=2)", "shard", str(tmp_path / "checkpoint"))
    done = torchrun(tmp_path, 2, str(HERE / "fsdp_training.py"), *words)
    assert done.returncode != 0
    assert "a reducescatter would keep a residual of the whole input on every rank" in done.stderr


def test_what_is_pending_is_as_much_on_another_number_of_ranks(jobs: Jobs) -> None:
    saved = jobs.trained("digits", "onebit", "shard")
    resumed = jobs.trained("digits", "onebit", "shard", 3, "resume")
    assert saved["pending"].keys() == resumed["pending"].keys()
    assert any(abs(total) > 1e-3 for total in saved["pending"].values())
    for name, total in saved["pending"].items():
        assert resumed["pending"][name] == pytest.approx(total, rel=1e-4, abs=1e-5), name
    assert saved["by ranks"]
    for name, total in saved["by ranks"].items():
        assert saved["pending"][name] == pytest.approx(total, rel=1e-4, abs=1e-5), name
    assert resumed["alike"] and resumed["loss"] < saved["loss"]


@pytest.mark.parametrize(("reduce", "ranks"), [("shard", 2), ("replicate", 2), ("both", 4)])
def test_frozen_parameters_leave_the_others_compressed(tmp_path: Path, reduce: str, ranks: int) -> None:
    """And nothing is lost while parameters are frozen and train again, or have no gradient in a step."""
    done = torchrun(tmp_path, ranks, str(HERE / "fsdp_frozen.py"), reduce, "onebit", "500")
    assert done.returncode == 0, done.stderr
    note = json.loads(done.stdout)
    kinds = ("shard", "replicate") if reduce == "both" else (reduce,)
    trained = {f"{kind}.{part}.{name}" for kind in kinds for part in ("first", "second") for name in ("down", "up")}
    assert note["compressed"] == dict.fromkeys(trained, "onebit")
    frozen = {
        f"{kind}.{part}.base.{name}" for kind in kinds for part in ("first", "second") for name in ("weight", "bias")
    }
    assert note["exact"] == dict.fromkeys(frozen, "it requires no gradient")
    assert set(note["pending"]) == trained
    assert note["waiting"] > 0.1, "something is compressed"
    assert note["off"] < 1e-4
    assert note["kept"] < 1e-4


def test_rules_by_shape_see_what_a_module_trains_as_one_row(tmp_path: Path) -> None:
    """The adapters of a module are 9 * 65 and 7 * 65 values; its frozen layer does not count."""
    rules = {"first where numel == 1040": "onebit", "* where numel > 1040": "onebit", "*": "none"}
    done = torchrun(tmp_path, 2, str(HERE / "fsdp_frozen.py"), "shard", json.dumps(rules), "500")
    assert done.returncode == 0, done.stderr
    note = json.loads(done.stdout)
    assert note["compressed"] == {"shard.first.down": "onebit", "shard.first.up": "onebit"}
    assert note["exact"]["shard.second.up"] == "the codec of second is none"
    assert note["off"] < 1e-4
    assert "'* where numel > 1040', because no parameter has such a name and shape" in done.stderr


def test_rules_by_more_than_the_number_of_elements_are_refused_under_fsdp(tmp_path: Path) -> None:
    rules = {"* where ndim == 1": "none", "*": "onebit"}
    done = torchrun(tmp_path, 2, str(HERE / "fsdp_frozen.py"), "shard", json.dumps(rules), "500")
    assert done.returncode != 0
    assert "rules=['* where ndim == 1']: FSDP2 reduces the parameters of a module as one row" in done.stderr


@pytest.mark.parametrize(
    ("backend", "mesh", "dtype", "reshard", "ranks"),
    [
        ("casync", "flat", "float32", "yes", 3),
        ("casync", "hsdp", "float32", "no", 4),
        ("gloo", "flat", "bfloat16", "2", 4),
    ],
)
def test_all_ranks_compute_with_the_same_rounded_weights(
    tmp_path: Path, backend: str, mesh: str, dtype: str, reshard: str, ranks: int
) -> None:
    done = torchrun(tmp_path, ranks, str(HERE / "fsdp_gathered.py"), backend, mesh, dtype, reshard)
    assert done.returncode == 0, done.stderr
    note = json.loads(done.stdout)
    rounded, exact = note["report"]
    assert set(rounded) == {"0.weight", "2.weight", "4.weight"}
    assert set(exact.values()) == {"it has one dimension"}
    # Of 16 bits a value may lie between two levels, which are 1/127 apart; float32 and float64 then take either.
    assert note["off"] < (1e-6 if dtype == "float32" else 1 / 127 + 2**-8)
    for name in (*rounded, *exact):
        assert note[f"changed {name}"] == (name in rounded)
    assert note["kept"], "the shards are exact"
    assert note["losses"]["rounded"] == pytest.approx(note["losses"]["exact"], rel=0.03)
    assert note["losses"]["rounded"] != note["losses"]["exact"]
    if (backend, mesh) == ("casync", "flat"):  # two gathers at a quarter, one reduce-scatter as before
        assert note["bytes"]["rounded"] < 0.7 * note["bytes"]["exact"]


def test_a_model_that_is_not_sharded_is_refused() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match=r"no module of the model is sharded: call fully_shard"):
        fsdp.quantize_all_gather(torch.nn.Linear(3, 3))


def test_what_is_too_small_is_said(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, str(HERE / "fsdp_frozen.py"), "shard", "onebit", "100000")
    assert done.returncode == 0, done.stderr
    note = json.loads(done.stdout)
    assert not note["compressed"] and note["waiting"] == 0
    assert re.fullmatch(
        r"first has \d+ elements that require a gradient, and min_numel is 100000", note["exact"]["shard.first.down"]
    )
    assert note["off"] < 1e-4
