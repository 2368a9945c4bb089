"""What a plan file can be wrong about, and that each is said with the file and a remedy."""

import logging
from hashlib import sha256
from pathlib import Path

import casync.torch as hvd
import pytest
import torch

from casync.plan.plans import GradientPlan, write_plans


@pytest.fixture(autouse=True)
def closed():
    yield
    hvd.shutdown()


@pytest.mark.parametrize(("content", "said"), [
    (None, "No such file"),
    (b"no JSON", "not JSON"),
    (b"\xff\xfe", "codec can't decode"),
    (b'{"format": "other"}', "not a plan"),
    (b'{"format": "casync-plan", "version": 1, "gradients": {"w": {"topology": "star"}}}', "'w'.*'star'.*two_level"),
    (b'{"format": "casync-plan", "version": 1, "gradients": {"w": {"codec": "threebit"}}}', "'w'.*threebit.*onebit"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_before_anything_begins(content, said, tmp_path):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(hvd.InvalidArgumentError, match=f"(?s){said}.*unset CASYNC_PLAN_FILE") as caught:
        hvd.init(plan_file=str(path))
    assert str(path) in str(caught.value) and not hvd.is_initialized()


def test_a_folder_is_no_plan_file(tmp_path):
    with pytest.raises(hvd.InvalidArgumentError, match="directory.*unset CASYNC_PLAN_FILE"):
        hvd.init(plan_file=str(tmp_path))


def test_a_plan_that_does_not_fit_its_tensor_names_both_and_the_file(tmp_path):
    path = tmp_path / "plan.json"
    write_plans(
        path,
        {
            "allreduce.adasum": GradientPlan("ring", "none"),
            "allreduce.integers": GradientPlan("ps", "onebit"),
        },
    )
    hvd.init(plan_file=str(path))
    for name, tensor, op, said in (
        ("adasum", torch.ones(10_000), hvd.Adasum, "at one place.*ring"),
        ("integers", torch.ones(10_000, dtype=torch.int32), hvd.Average, "int32"),
    ):
        with pytest.raises(hvd.InvalidArgumentError, match=f"tensor allreduce.{name} does not fit.*{said}.*correct it"):
            hvd.allreduce(tensor, name=name, op=op, compression="auto")
        with pytest.raises(hvd.InvalidArgumentError, match=str(path)):
            hvd.allreduce(tensor, name=name, op=op, compression="auto")
    assert hvd.allreduce(torch.ones(3), name="another")[0] == 1


OWN = Path(__file__).parents[2] / "compll" / "quantisers" / "absmax.cll"


def test_a_plan_that_a_run_with_an_own_file_wrote_can_be_used(tmp_path, monkeypatch):
    monkeypatch.setenv("CASYNC_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "plan.json"
    write_plans(path, {"allreduce.w": GradientPlan("ps", f"absmax@{sha256(OWN.read_bytes()).hexdigest()[:8]}")})
    hvd.init(plan_file=str(path))
    hvd.allreduce(torch.ones(10_000), name="w", compression=str(OWN))


def test_a_plan_for_an_own_file_that_is_another_by_now(tmp_path, monkeypatch):
    monkeypatch.setenv("CASYNC_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "plan.json"
    write_plans(path, {"allreduce.w": GradientPlan("ps", "absmax@00000000")})
    hvd.init(plan_file=str(path))
    with pytest.raises(hvd.InvalidArgumentError, match="absmax@00000000.*not known.*plan.json"):
        hvd.allreduce(torch.ones(10_000), name="w", compression="auto")
    for codec in (str(OWN), "onebit", "none"):  # what the script names comes first
        hvd.allreduce(torch.ones(10_000), name="w", compression=codec)


def test_the_scripts_own_mistakes_are_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "plan.json"
    write_plans(path, {"allreduce.w": GradientPlan("ps", "onebit")})
    hvd.init(plan_file=str(path))
    with pytest.raises(hvd.InvalidArgumentError, match="threebit") as caught:
        hvd.allreduce(torch.ones(10_000), name="w", compression="threebit")
    assert "plan.json" not in str(caught.value)


def test_plans_that_were_not_used_are_reported_at_the_end(tmp_path, caplog):
    path = tmp_path / "plan.json"
    plan = GradientPlan("ps", "onebit")
    write_plans(path, {"allreduce.used": plan, "allreduce.absent": plan, "allreduce.named": plan})
    hvd.init(plan_file=str(path))
    hvd.allreduce(torch.ones(10_000), name="used", compression="auto")
    hvd.allreduce(torch.ones(10_000), name="named")  # compression is "none"
    with caplog.at_level(logging.WARNING, "casync"):
        hvd.shutdown()
    (record,) = caplog.records
    assert "2 of the 3 plans" in record.getMessage() and str(path) in record.getMessage()
    assert "allreduce.absent" in record.getMessage()


def test_nothing_is_reported_when_all_were_used(tmp_path, caplog):
    path = tmp_path / "plan.json"
    write_plans(path, {"allreduce.used": GradientPlan("ps", "onebit")})
    with caplog.at_level(logging.WARNING, "casync"):
        hvd.init(plan_file=str(path))
        hvd.allreduce(torch.ones(10_000), name="used", compression="auto")
        hvd.shutdown()
    assert not caplog.records


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    plan = GradientPlan("ps", "onebit", 3, 0, 0, "by hand")
    write_plans(path, {"allreduce.w": plan})
    monkeypatch.setenv("CASYNC_PLAN_FILE", str(path))
    hvd.init()
    hvd.allreduce(torch.ones(10_000), name="w", compression="auto")
    assert hvd.plans() == {"allreduce.w": plan}
