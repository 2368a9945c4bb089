"""DistributedDataParallel among some of the ranks: with the hook it has the numbers that it has without."""

from __future__ import annotations

from typing import Any

import casync.torch as hvd
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support.ddp_models import STEPS, Used, assert_like, batch, compare, group_of_mine, hooked, parts, train

pytestmark = [pytest.mark.usefixtures("gloo"), pytest.mark.filterwarnings("ignore")]


# --- among which ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["group", "mesh", "mesh of all"])
@pytest.mark.parametrize("named", [True, False])
def test_the_mean_is_over_ddps_process_group(rank: int, size: int, how: str, named: bool) -> None:
    settings: dict[str, Any] = {}
    if how == "group":
        settings["process_group"] = group_of_mine(rank, size)
    else:
        from torch.distributed.device_mesh import init_device_mesh

        shape = (1, size) if how == "mesh of all" else (size, 1)
        settings["device_mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("tp", "dp"))["dp"]
    compare(rank, Used, named=named, **settings)


@pytest.mark.parametrize("named", [True, False])
def test_only_some_ranks_have_a_model_in_ddp(rank: int, size: int, named: bool) -> None:
    group = dist.new_group(parts(size)[0])
    if rank in parts(size)[0]:
        compare(rank, Used, named=named, process_group=group)


@pytest.mark.parametrize("named", [True, False])
def test_a_model_of_some_ranks_beside_one_of_all(rank: int, size: int, named: bool) -> None:
    """As a shared trunk and an expert, whose parameters have the same names."""
    group = dist.new_group(parts(size)[0])

    def train_both(trunk: Any, expert: Any) -> None:
        optimizer = torch.optim.SGD([*trunk.parameters(), *(expert.parameters() if expert else ())], lr=0.05)
        for step in range(STEPS):
            optimizer.zero_grad()
            if expert is not None:
                expert(batch(step, rank)).backward()
            trunk(batch(step + 50, rank)).backward()
            optimizer.step()

    models = []
    for has_hook in (True, False):
        is_expert = rank in parts(size)[0]
        expert = DistributedDataParallel(Used(), process_group=group) if is_expert else None
        trunk = DistributedDataParallel(Used())
        for ddp in (expert, trunk) if has_hook else ():
            if ddp is not None:
                hooked(ddp, named=named)
        train_both(trunk, expert)
        models.append((trunk, expert))
    (trunk, expert), (plain_trunk, plain_expert) = models
    assert_like(trunk, plain_trunk)
    if expert is not None and plain_expert is not None:
        assert_like(expert, plain_expert)


def test_a_hook_around_ours(rank: int, size: int) -> None:
    """Which does not hand DDP our state."""
    group = group_of_mine(rank, size)
    mine, theirs = Used(), Used()
    ddp = DistributedDataParallel(mine, process_group=group)
    state = hvd.ddp_state(named_parameters=mine.named_parameters())
    ddp.register_comm_hook(None, lambda _, bucket: hvd.ddp_hook(state, bucket))
    train(ddp, rank)
    train(DistributedDataParallel(theirs, process_group=group), rank)
    assert_like(mine, theirs)


def test_what_codecs_keep_is_that_of_the_group(rank: int, size: int) -> None:
    group = group_of_mine(rank, size)
    model = Used()
    state = hooked(ddp := DistributedDataParallel(model, process_group=group), "always(onebit)")
    train(ddp, rank)
    members = parts(size)[-1] if rank == size - 1 else parts(size)[0]
    kept = state.state_dict()
    assert (kept["rank"], kept["size"]) == (members.index(rank), len(members))
    assert (set(kept["residuals"]) == {name for name, _ in model.named_parameters()}) == (len(members) > 1)
    again = hooked(DistributedDataParallel(Used(), process_group=group), "always(onebit)")
    again.load_state_dict(kept)
    for name, values in again.state_dict()["residuals"].items():
        assert torch.equal(values, kept["residuals"][name])


def test_a_process_set_of_the_same_ranks_is_taken(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if size < 3:
        pytest.skip("a set of some ranks")
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    sets = [hvd.add_process_set(ranks) for ranks in parts(size)]
    group = group_of_mine(rank, size)
    mine, theirs = Used(), Used()
    hooked(ddp := DistributedDataParallel(mine, process_group=group))
    plain = DistributedDataParallel(theirs, process_group=group)
    train(ddp, rank)
    assert "allreduce.first.weight" in hvd.plans(sets[rank == size - 1])
    for one in sets:  # and when it is no more, training goes on
        hvd.remove_process_set(one)
    train(ddp, rank)
    for _ in range(2):
        train(plain, rank)
    assert_like(mine, theirs)
