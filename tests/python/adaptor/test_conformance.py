"""The ranks of the conformance kit do what the runtime does: the same bits of results, residuals and state."""

import numpy as np
import pytest

from casync import _core
from casync.compll.conformance.world import World
from casync.plan.plans import GradientPlan, write_plans
from casync.session import default

SHAPE = (150, 700)
CASES = [
    ("onebit", "ps", 1),
    ("onebit", "direct", 3),
    ("terngrad(bits=4)", "ps", 4),
    ("test_topk(ratio=0.05)", "direct", 2),
    ("test_tworound", "ps", 2),
    ("test_tworound", "direct", 2),
    ("fp16", "ps", 3),
    ("bf16", "direct", 1),
    ("test_state(gather=0)", "ps", 3),
    ("test_state(gather=1)", "direct", 2),
    ("test_lowrank(start=0)", "ps", 1),
    ("test_lowrank(start=0)", "direct", 1),
]


def hash_of(name: str) -> int:
    """FNV-1a, 64 bit."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


@pytest.mark.parametrize(("spec", "topology", "partitions"), CASES)
def test_the_virtual_ranks_are_the_real_ones(adaptor, hvd, tmp_path, rank, size, rng, spec, topology, partitions):
    if size == 1:
        pytest.skip("a rank alone encodes nothing")
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    if rank == 0:
        write_plans(path, {"allreduce.w": GradientPlan(topology, spec, partitions, 0, 0, "by hand")})
    hvd.barrier()
    hvd.shutdown()
    hvd.init(timeout_s=20.0, plan_file=path)
    codec = _core.Codec(spec)
    route = "direct" if topology == "direct" else "parameter server"
    world = World(codec, SHAPE, size, route=route, cut=partitions, name=hash_of("allreduce.w"))
    for step in range(3):
        gradients = [rng.standard_normal(SHAPE[0] * SHAPE[1], np.float32) for _ in range(size)]
        if step == 1:
            gradients[-1][5] = np.nan
        mine = adaptor.tensor(gradients[rank].reshape(SHAPE))
        result = adaptor.array(hvd.allreduce(mine, name="w", compression=spec)).reshape(-1)
        expected = world.step(gradients)[rank]
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32), f"step {step}")
        states = default.session().codec_states
        kept = {name: states.residual(name) for name in states.residual_names()}
        for name in states.state_names():
            kept |= {array: state["values"] for array, state in states.state(name)["arrays"].items()}
        for (name, real), expected in zip(kept.items(), world.ranks[rank].kept().values(), strict=True):
            np.testing.assert_array_equal(real.view(np.uint32), expected.view(np.uint32), f"{name}, step {step}")
