"""Plans of gradients on a GPU, on the stand-in: on the host if the plan says so, and steps that are left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from casync.plan.plans import GradientPlan, write_plans
from support.standin.programs import BEGIN, run

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")

PROGRAM = """
import casync.numpy

ON = {
    "cpu": (casync.numpy, numpy.array, numpy.asarray),
    "gpu": (hvd, tensors.from_host, tensors.to_host),
}


def trained(place, plan_file):
    \"\"\"The results of seven steps there, and whether the GPU computed the last, before which it may try things.\"\"\"
    hvd.shutdown()
    hvd.init(plan_file=plan_file)
    functions, to_tensor, to_array = ON[place]
    results = []
    for step in range(7):
        before = script.standin_launches()
        values = numpy.random.default_rng((step, hvd.rank())).standard_normal(1 << 16, "float32")
        result = to_array(functions.allreduce(to_tensor(values), name="w", compression="auto"))
        assert step % PERIOD == 0 or not result.any()
        results.append(result.tobytes())
    return results, script.standin_launches() > before


on_cpu, _ = trained("cpu", PLANS)
on_gpu, launched = trained("gpu", PLANS)
print(on_gpu == on_cpu, launched, len(set(on_cpu)) > 1, flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize(("codec", "period", "on_host"), [("onebit", 3, False), ("none", 3, True), ("onebit", 1, True)])
def test_a_gpu_does_as_the_plan_says(codec: str, period: int, on_host: bool, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plans(path, {"allreduce.w": GradientPlan("ps", codec, 2, period=period, on_host=on_host)})
    given = f"PLANS, PERIOD = {str(path)!r}, {period}\n"
    for line in run(2, given + BEGIN + PROGRAM, tmp_path):
        assert line.split() == ["True", str(not on_host), "True"]
