"""What programs do with DistributedDataParallel: with the hook it has the numbers that it has without."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import casync.torch as hvd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from support.replicas import assert_same_everywhere

pytestmark = pytest.mark.usefixtures("gloo")

STEPS = 3


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Dense(nn.Module):
    """A layer goes unused in steps without `is_long`, and one always."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(12, 40), nn.Linear(40, 40), nn.Linear(40, 4)
        self.never = nn.Linear(40, 4)

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        y = self.first(x).relu()
        if is_long:
            y = self.second(y).relu()
        return self.third(y).square().mean()


class Used(Dense):
    """All of it is used."""

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        return super().forward(x) + self.never(self.first(x)).mean()


class Checkpointed(Used):
    """Parts of backward are passes of their own."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self._use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        y = checkpoint(lambda z: self.second(z).relu(), self.first(x).relu(), use_reentrant=self._use_reentrant)
        return self.third(y).square().mean() + self.never(self.first(x)).mean()


class Odd(nn.Module):
    """Parameters of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(12, 8))
        self.t = nn.Parameter(torch.randn(12, 8).t())
        self.c = nn.Parameter(torch.randn(12, 8, dtype=torch.complex64))
        self.cc = nn.Parameter(torch.randn(12, dtype=torch.complex128))
        self.point = nn.Parameter(torch.tensor(1 + 2j))
        self.kernel = nn.Parameter(torch.randn(4, 2, 3, 3, dtype=torch.complex64).to(memory_format=torch.channels_last))
        self.real_kernel = nn.Parameter(torch.randn(4, 2, 3, 3).to(memory_format=torch.channels_last))
        self.empty = nn.Parameter(torch.empty(0, 12))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.exact = nn.Parameter(torch.randn(12, 3, dtype=torch.float64))
        self.brief = nn.Parameter(torch.randn(12, 3).bfloat16())
        self.narrow = nn.Parameter(torch.randn(12, 3).half())

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        z = torch.complex(x, 0.5 * x)
        image = x[:2, :9].reshape(1, 2, 3, 3)
        kernels = (self.kernel * torch.complex(image, -image)).abs().square().mean() + (self.real_kernel * image).sum()
        complexes = ((z @ self.c) * (1 + 2j) - self.point).abs().square().mean() + (z * self.cc).sum().abs().float()
        reals = (x @ self.w).square().mean() * self.scalar + (x @ self.t.t()).sin().mean() + self.empty.sum()
        others = (x.double() @ self.exact).square().mean().float() + (x.bfloat16() @ self.brief).float().mean()
        return kernels + complexes + reals + others + (x.half() @ self.narrow).float().mean()


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(100 * step + rank))


def hooked(ddp: DistributedDataParallel, codec: Any = "none", named: bool = True) -> hvd.ddp.DdpState:
    state = hvd.ddp_state(codec, ddp.module.named_parameters() if named else None)
    ddp.register_comm_hook(state, hvd.ddp_hook)
    return state


def train(ddp: nn.Module, rank: int, steps: int = STEPS, varies: bool = False, forward: Any = None) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        (forward or ddp)(batch(step, rank), **({"is_long": step % 2 == 0} if varies else {})).backward()
        optimizer.step()


def assert_like(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def compare(
    rank: int, make: Callable[[], nn.Module], varies: bool = False, named: bool = True, **settings: Any
) -> None:
    mine, theirs = make(), make()
    ddp = DistributedDataParallel(mine, bucket_cap_mb=0.002, **settings)
    hooked(ddp, named=named)
    train(ddp, rank, varies=varies)
    train(DistributedDataParallel(theirs, bucket_cap_mb=0.002, **settings), rank, varies=varies)
    assert_like(mine, theirs)
    assert any(not torch.equal(one, other) for one, other in zip(mine.parameters(), make().parameters(), strict=True))


# --- how DDP is set up ------------------------------------------------------------------------------------------------

NEW = {"batched_grad_copy", "skip_all_reduce_unused_params"} - set(
    inspect.signature(DistributedDataParallel.__init__).parameters
)


@pytest.mark.parametrize(
    ("make", "varies", "settings"),
    [
        pytest.param(Used, False, {"gradient_as_bucket_view": True}, id="views"),
        pytest.param(Used, False, {"static_graph": True}, id="static"),
        pytest.param(Dense, False, {"static_graph": True}, id="static-unused"),
        pytest.param(Dense, True, {"find_unused_parameters": True}, id="unused"),
        pytest.param(Dense, True, {"find_unused_parameters": True, "gradient_as_bucket_view": True}, id="unused-views"),
        pytest.param(
            Dense, False, {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}, id="unused-skipped"
        ),
        pytest.param(Used, False, {"batched_grad_copy": True}, id="batched"),
        pytest.param(lambda: Checkpointed(True), False, {}, id="reentrant"),
        pytest.param(lambda: Checkpointed(False), False, {}, id="checkpointed"),
        pytest.param(lambda: Checkpointed(True), False, {"static_graph": True}, id="reentrant-static"),
        pytest.param(Odd, False, {}, id="odd"),
        pytest.param(Odd, False, {"gradient_as_bucket_view": True}, id="odd-views"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_settings_of_ddp(
    rank: int, make: Callable[[], nn.Module], varies: bool, settings: dict[str, Any], named: bool
) -> None:
    if NEW & set(settings):
        pytest.skip("torch has no such setting yet")
    compare(rank, make, varies, named, **settings)


def test_gradients_that_ddp_reduces_late_by_itself(rank: int) -> None:
    """It keeps them from the hook."""

    def wrapped(model: Used) -> DistributedDataParallel:
        late = [("second.weight", model.second.weight), ("second.bias", model.second.bias)]
        return DistributedDataParallel(
            model, delay_all_reduce_named_params=late, param_to_hook_all_reduce=model.first.weight
        )

    mine, theirs = wrapped(Used()), wrapped(Used())
    hooked(mine)
    for step in range(STEPS):
        mine(batch(step, rank)).backward()
        theirs(batch(step, rank)).backward()
    for one, other in zip(mine.module.parameters(), theirs.module.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.interplay("sparse embeddings", "DDP hook", "supported", "uncompressed, or in 16 bits")
@pytest.mark.parametrize("codec", ["none", "always(onebit)", "fp16"])
@pytest.mark.parametrize("views", [True, False])
def test_sparse_embeddings(rank: int, codec: str, views: bool) -> None:
    """Words that one rank alone has, and that several have."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 3), nn.Embedding(1, 1, max_norm=1.0))[:2]

    def train(ddp: nn.Module) -> None:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.tensor([step, rank, rank + 3, 3])).square().mean().backward()
            optimizer.step()

    mine, theirs = make(), make()
    ddp = DistributedDataParallel(mine, gradient_as_bucket_view=views)
    hooked(ddp, {"0.weight": codec, "*": "none"})
    train(ddp)
    train(DistributedDataParallel(theirs, gradient_as_bucket_view=views))
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("codec", ["fp16", "always(onebit)", "always(powersgd(rank=2))"])
def test_complex_gradients_are_compressed_whole(rank: int, codec: str) -> None:
    model = Odd()
    hooked(ddp := DistributedDataParallel(model), codec)
    alone = Odd()
    ddp(batch(0, rank)).backward()
    sum(alone(batch(0, each)) for each in range(hvd.size())).div(hvd.size()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_same_everywhere(torch.view_as_real(parameter.grad) if parameter.is_complex() else parameter.grad, name)
    if codec == "fp16":
        assert model.c.grad is not None and alone.c.grad is not None
        torch.testing.assert_close(model.c.grad, alone.c.grad, rtol=2e-2, atol=1e-2)


class Branches(nn.Module):
    """Linear in each of its parameters, of which a step uses some: so gradients do not hang on what was sent before."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(40, 12)), nn.Parameter(torch.zeros(40, 12))

    def forward(self, x: torch.Tensor, used: str) -> torch.Tensor:
        terms = [(getattr(self, name) @ x.T).sum() for name in used]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("views", [True, False])
def test_nothing_is_lost_of_parameters_that_go_unused(rank: int, size: int, to_none: bool, views: bool) -> None:
    """On one rank, or on all of them, as those of the network that a GAN does not train in this step."""
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=views)
    state = hooked(ddp, "always(onebit)")
    sums = {name: torch.zeros(12) for name in "ab"}
    for step, used in enumerate(["ab", "a", "b", "b", "ab", "a", "a"]):
        ddp.zero_grad(set_to_none=to_none)
        ddp(batch(step, rank), "ab"[rank % 2] if step == 4 else used).backward()
        for name, parameter in model.named_parameters():
            users = [each for each in range(size) if name in ("ab"[each % 2] if step == 4 else used)]
            sums[name] += sum((batch(step, each).sum(0) for each in users), torch.zeros(12)) / size
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter += parameter.grad
    for name, values in model.named_parameters():
        pending = state.state_dict()["residuals"].get(name, torch.zeros(480))
        pending = hvd.allreduce(pending.reshape(40, 12), name=f"pending.{name}")
        assert size == 1 or pending.any()
        torch.testing.assert_close(values + pending, sums[name].expand(40, 12), rtol=1e-4, atol=1e-4)


# --- among which ranks ------------------------------------------------------------------------------------------------


def parts(size: int) -> list[list[int]]:
    """All ranks but the last, and the last."""
    return [list(range(size - 1)), [size - 1]] if size > 1 else [[0]]


def group_of_mine(rank: int, size: int) -> Any:
    groups = [dist.new_group(ranks) for ranks in parts(size)]
    return groups[-1] if rank == size - 1 else groups[0]


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


# --- models that come, go and are copied ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "fp16", "always(onebit)"])
def test_two_models_with_the_same_names_train_in_turn(rank: int, codec: str) -> None:
    """As the two of a GAN."""
    first, second = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    states = hooked(first, codec), hooked(second, codec)
    plain = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    for one, other in ((first, second), plain):
        optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.05) for ddp in (one, other)]
        for step in range(2 * STEPS):
            for ddp, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                ddp(batch(step + (7 if ddp is other else 0), rank)).backward()
                optimizer.step()
    if codec == "none":
        assert_like(first, plain[0])
        assert_like(second, plain[1])
    names = {name for name, _ in first.module.named_parameters()}
    for ddp, state in zip((first, second), states, strict=True):
        for name, parameter in ddp.named_parameters():
            assert_same_everywhere(parameter, name)
        assert codec != "always(onebit)" or hvd.size() == 1 or set(state.state_dict()["residuals"]) == names


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_model_is_put_into_ddp_again(rank: int, is_kept: bool) -> None:
    mine, theirs = Used(), Used()
    kept = []
    for model in (mine, theirs):
        for _ in range(3):
            ddp = DistributedDataParallel(model)
            if model is mine:
                hooked(ddp, "none")
            train(ddp, rank)
            kept += [ddp] if is_kept else []
    assert_like(mine, theirs)


def pickled(ddp: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(ddp))  # noqa: S301  # it is ours


def saved(ddp: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu")])
def test_copies_of_a_model_in_ddp(rank: int, copied: Callable[[Any], Any], named: bool, scaler: Any) -> None:
    """The copy trains as a copy of a DDP without a hook does, and so does the original."""
    mine, theirs = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    names = mine.module.named_parameters() if named else None
    mine.register_comm_hook(hvd.ddp_state("always(onebit)", names, grad_scaler=scaler), hvd.ddp_hook)
    before = copied(mine)
    train(mine, rank)
    theirs.load_state_dict(mine.state_dict())
    after, plain = copied(mine), copied(theirs)
    assert_like(after, mine)
    for copy_of in (before, after, plain):
        train(copy_of, rank)
    assert_like(after, plain)
    hooked(after, "none", named)  # DDP has room for it
    for copy_of in (after, plain):
        train(copy_of, rank)
    assert_like(after, plain)
    train(mine, rank)
    for name, parameter in mine.named_parameters():
        assert_same_everywhere(parameter, name)


def test_an_average_of_weights(rank: int) -> None:
    mine, theirs = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    hooked(mine)
    averages = []
    for ddp in (mine, theirs):
        average = torch.optim.swa_utils.AveragedModel(ddp, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for _ in range(3):
            train(ddp, rank, steps=1)
            average.update_parameters(ddp)
        averages.append(average)
    assert_like(*averages)
    torch.testing.assert_close(averages[0](batch(9, 0)), averages[1](batch(9, 0)), rtol=1e-3, atol=1e-4)


# --- uneven data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("settings", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("epochs", [1, 2])
def test_ranks_with_less_data(rank: int, by_initial: bool, settings: dict[str, Any], epochs: int) -> None:
    mine, theirs = Used(), Used()
    for model in (mine, theirs):
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, **settings)
        if model is mine:
            hooked(ddp)
        for epoch in range(epochs):
            with ddp.join(divide_by_initial_world_size=by_initial):
                train(ddp, rank, steps=2 + (rank + epoch) % 3)
        train(ddp, rank)  # and with even data
    assert_like(mine, theirs)


def test_ranks_with_less_data_in_a_group(rank: int, size: int) -> None:
    group = group_of_mine(rank, size)
    mine, theirs = Used(), Used()
    for model in (mine, theirs):
        ddp = DistributedDataParallel(model, process_group=group)
        if model is mine:
            hooked(ddp)
        with Join([ddp], divide_by_initial_world_size=False):
            train(ddp, rank, steps=2 + rank)
    assert_like(mine, theirs)


def test_residuals_with_less_data(rank: int) -> None:
    model = Used()
    hooked(ddp := DistributedDataParallel(model), "always(onebit)")
    with ddp.join():
        train(ddp, rank, steps=2 + 2 * rank)
    for name, parameter in model.named_parameters():
        assert_same_everywhere(parameter, name)


def test_what_fails_while_a_rank_has_joined(rank: int, size: int) -> None:
    """It raises on all ranks the error of its kind, and leaves nothing outstanding."""
    if size < 2:
        pytest.skip("ranks that disagree")
    model = Used()
    ddp = DistributedDataParallel(model)
    hooked(ddp, {"first.weight": "fp16" if rank else "bf16", "*": "none"})
    with pytest.raises(hvd.MismatchError, match=r"first\.weight"), ddp.join():
        train(ddp, rank, steps=min(rank, 1))
    assert not hvd.ddp.default.session().has_outstanding
