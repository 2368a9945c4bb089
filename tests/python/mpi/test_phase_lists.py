"""Lists of phases: every compression option of ByteComp that is executed, by real ranks.

The ranks of one machine say that they are on several hosts, so that there are two levels. Results are compared with
sums in float64; of a codec with feedback, what was sent and what the ranks hold back is compared with all gradients.
"""

import re
import zlib

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync import _core
from casync.errors import InvalidArgumentError
from casync.plan.phases import to_list
from casync.plan.plans import GradientPlan, read_plans, write_plans
from casync.session import default
from casync.transport import tcp
from support.replicas import assert_same_everywhere
from support.training import new_session

LISTS = _core.phase_lists()
NUMEL = 12_345
STEPS = 4
HOSTS = {1: [0], 2: [0, 1], 3: [0, 0, 1], 4: [0, 0, 1, 1], 5: [0, 1, 1, 2, 2]}
CODECS = ("none", "fp16", "onebit", "topk(ratio=0.05)", "onebit(feedback_bits=8)", "adacomp")
TOLERANCES = {"fp16": 0.02, "onebit(feedback_bits=8)": 0.3}  # a residual of 8 bits is rounded in each step


def gradients(size, step):
    return np.random.default_rng(step).standard_normal((size, NUMEL)).astype(np.float32)


def on_hosts(monkeypatch, tmp_path, rank, size, plans, **arguments):
    """A session in which each rank is where HOSTS has it, with these plans."""
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    if rank == 0:
        write_plans(path, plans)
    hvd.barrier()
    monkeypatch.setattr(tcp, "_host_key", lambda: f"host {HOSTS[size][rank]}")
    new_session(transport="tcp", plan_file=path, **arguments)
    assert hvd.local_size() == HOSTS[size].count(HOSTS[size][rank])


@pytest.fixture(autouse=True)
def back(monkeypatch):
    yield
    monkeypatch.undo()
    new_session()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
def test_all_lists_give_all_ranks_the_same_and_lose_nothing(monkeypatch, tmp_path, rank, size, codec, average):
    plans = {
        f"allreduce.list{number}": GradientPlan(
            topology=text, codec=codec, partitions=1 + number % 7, first_owner=number
        )
        for number, text in enumerate(LISTS)
        if not (codec == "adacomp" and text.endswith("coded)") and "intra" in text)
    }
    on_hosts(monkeypatch, tmp_path, rank, size, plans)
    op = hvd.Average if average else hvd.Sum
    sums = {name: np.zeros(NUMEL) for name in plans}
    for step in range(STEPS):
        mine = torch.from_numpy(gradients(size, step)[rank])
        handles = {
            name: hvd.allreduce_async(mine.clone(), name=name.removeprefix("allreduce."), op=op, compression="auto")
            for name in plans
        }
        digests = []
        for name, handle in handles.items():
            result = hvd.synchronize(handle).numpy()
            digests.append(zlib.crc32(result.tobytes()))
            sums[name] += result.astype(np.float64) * (size if average else 1)
        assert_same_everywhere(torch.tensor(digests))
    states = default.session().codec_states
    residuals = {name: states.residual(name) for name in states.residual_names()}
    expected = sum(gradients(size, step).astype(np.float64).sum(0) for step in range(STEPS))
    for name, plan in plans.items():
        assert size == 1 or hvd.plans()[name].topology == plan.topology
        held = np.zeros(NUMEL)
        if name in residuals:
            held += residuals[name]
        if name in states.state_names():
            held += sum(array["values"] for array in states.state(name)["arrays"].values() if array["pending"])
        held = hvd.allreduce(torch.from_numpy(held), op=hvd.Sum).numpy()
        tolerance = TOLERANCES.get(codec, 5e-5)
        np.testing.assert_allclose(sums[name] + held, expected, rtol=0, atol=tolerance, err_msg=plan.topology)


def test_a_plan_file_has_them_phase_by_phase(tmp_path):
    for number, text in enumerate(LISTS):
        plan = GradientPlan(topology=text, codec="onebit" if "coded" in text else "none", partitions=1 + number)
        write_plans(tmp_path / "plan.json", {"allreduce.w": plan})
        document = (tmp_path / "plan.json").read_text()
        assert '"version": 3' in document and "phases(" not in document
        assert read_plans(tmp_path / "plan.json")["allreduce.w"] == plan
        phases = to_list(text, plan.codec, plan.partitions, on_host=False)
        assert len(phases) == text.count(",") + 1


BROKEN = {
    "phases(flat alltoall, flat allgather)": "phase 0 (flat alltoall): it gathers payloads, so it is not raw",
    "phases(flat alltoall coded, flat allgather passed)": "passes payloads on that nobody has added up",
    "phases(flat jump)": "'jump' is no routine",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_list_that_is_not_executed_is_refused_by_its_rule(tmp_path, rank, size, text):
    with pytest.raises(InvalidArgumentError, match=re.escape(BROKEN[text])):
        new_session(topology=text)
    path = tmp_path / f"plan{rank}.json"
    write_plans(path, {"allreduce.w": GradientPlan(topology=text, codec="onebit")})
    with pytest.raises(InvalidArgumentError, match="gradient 'allreduce.w': .*" + re.escape(BROKEN[text])):
        new_session(plan_file=str(path))


@pytest.mark.parametrize("codec", ["none", "onebit", "powersgd(rank=2, start_step=0)"])
def test_a_topology_may_be_a_list(rank, size, codec):
    """It is for all tensors; a codec that it does not carry is refused by name."""
    new_session(topology="phases(flat alltoall coded, flat allgather)")
    values = torch.ones(100, 100) * (rank + 1)
    if codec.startswith("powersgd"):
        with pytest.raises(InvalidArgumentError, match="merges payloads in rounds"):
            hvd.allreduce(values, name="w", compression=codec)
        return
    result = hvd.allreduce(values, name="w", compression=codec)
    torch.testing.assert_close(result, torch.full((100, 100), (size + 1) / 2))


@pytest.mark.parametrize(
    "blanks", ["phases(flat alltoall coded,flat allgather)", " phases( flat  alltoall coded , flat allgather raw )"]
)
def test_blanks_do_not_matter(rank, size, several, blanks):
    """Wherever a topology is named, the plan has the one text of it."""
    new_session(topology=blanks)
    hvd.allreduce(torch.ones(100, 100), name="a", compression="onebit")
    new_session()
    hvd.allreduce(torch.ones(100, 100), name="b", compression="onebit", topology=blanks)
    text = "phases(flat alltoall coded, flat allgather)"
    assert {plan.topology for plan in hvd.plans().values()} == {text}
