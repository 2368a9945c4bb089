"""DiLoCo with PyTorch's optimizers as outer ones, beside all ranks in one process; and checkpoints of both."""

import copy
import io

import casync.torch as hvd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from casync.errors import InvalidArgumentError
from support.local_steps import adam, sgd, train
from support.replicas import assert_replicas_identical, assert_same, assert_same_bits
from support.training import batch_of, make_model, new_session


class _Stopped(Exception):
    """The end of a job in the middle."""


def nesterov(model):
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def outer_adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)  # or rounding would decide about the sign of a step


def two(model):
    return [nesterov(model[0]), outer_adam(nn.ModuleList([model[2], model[4]]))]


def parts_of(model):
    return [model[0], nn.Sequential(model[2], model[4])]


class Simulated:
    """All ranks in one process. Two fragments, the first half way between the rounds of the second."""

    def __init__(self, size, outer_of):
        self.models, self.anchor = [make_model() for _ in range(size)], make_model()
        self.optimizers = [sgd(model) for model in self.models]
        made = outer_of(self.anchor)
        self.outer = made if isinstance(made, list) else [made]
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.outer[0], 1, 0.5)

    def train(self, number):
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            train(model, optimizer, rank, [number])
        if number % 4 == 1:
            self._round(0)
        if number % 4 == 3:
            self._round(1)
            self.scheduler.step()

    def _round(self, place):
        anchors = list(parts_of(self.anchor)[place].parameters())
        everyones = [list(parts_of(model)[place].parameters()) for model in self.models]
        for anchor, *own in zip(anchors, *everyones, strict=True):
            anchor.grad = anchor.detach() - torch.stack([one.detach() for one in own]).mean(0)
        for optimizer in self.outer:
            optimizer.step()
        with torch.no_grad():
            for anchor, *own in zip(anchors, *everyones, strict=True):
                anchor.grad = None
                for one in own:
                    one.copy_(anchor)


@pytest.mark.parametrize("backup_device", [None, "cpu"])
@pytest.mark.parametrize("outer_of", [nesterov, outer_adam, two])
def test_an_outer_optimizer_with_a_schedule(rank, size, outer_of, backup_device):
    model, everyone = make_model(), Simulated(size, outer_of)
    optimizer, outer = sgd(model), outer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(outer[0] if isinstance(outer, list) else outer, 1, 0.5)
    with hvd.DiLoCo(parts_of(model), optimizer, outer, 4, backup_device):
        for number in range(8):
            train(model, optimizer, rank, [number])
            everyone.train(number)
            if number % 4 == 3:
                scheduler.step()
        assert_same(model, everyone.models[rank])


def test_two_models_with_one_each(rank):
    first, second = make_model(0), make_model(1)
    one, other = sgd(first), sgd(second)
    with (
        hvd.DiLoCo(first, one, sync_every=2, compression="onebit", min_numel=0),
        hvd.DiLoCo(second, other, sync_every=3, compression="onebit", min_numel=0),
    ):
        for number in range(7):
            train(first, one, rank, [number])
            train(second, other, rank, [number])
    assert_replicas_identical(first)
    assert_replicas_identical(second)


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_16_bits(rank, codec):
    model = make_model().bfloat16()
    optimizer = sgd(model)
    with hvd.DiLoCo(model, optimizer, sync_every=2, compression=codec, min_numel=0) as diloco:
        for number in range(4):
            optimizer.zero_grad()
            inputs, labels = batch_of(number, rank)
            nn.functional.cross_entropy(model(inputs.bfloat16()).float(), labels).backward()
            optimizer.step()
        diloco.load_state_dict(reread(diloco.state_dict()))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert_replicas_identical(model.float())


def test_torchfts_word_for_8_bits(rank):
    models = []
    for how in ({"should_quantize": True}, {"compression": "int8"}):
        model = make_model()
        optimizer = sgd(model)
        with hvd.DiLoCo(model, optimizer, sync_every=2, min_numel=0, **how):
            for number in range(4):
                train(model, optimizer, rank, [number])
        models.append(model)
    assert_replicas_identical(models[0])
    with pytest.raises(InvalidArgumentError, match="one of the two"):
        hvd.DiLoCo(models[0], sgd(models[0]), should_quantize=True, compression="onebit")


def test_copies_of_the_model_are_the_programs(rank):
    model = make_model()
    optimizer, mean = sgd(model), torch.optim.swa_utils.AveragedModel(model)
    with hvd.DiLoCo(model, optimizer, sync_every=2):
        for number in range(4):
            train(model, optimizer, rank, [number])
            if number % 2:
                mean.update_parameters(model)
        copied = copy.deepcopy(model)
    assert_replicas_identical(mean)
    train(copied, sgd(copied), rank, [4])


@pytest.mark.parametrize("kind", [list, nn.ModuleList])
def test_modules_are_fragments(rank, kind):
    model = make_model()
    optimizer = sgd(model)
    with hvd.DiLoCo(kind(model), optimizer, sync_every=5) as diloco:  # some of which have no parameters
        train(model, optimizer, rank, range(6))
    assert len(diloco.rounds.fragments) == 5
    assert_replicas_identical(model)


@pytest.mark.parametrize(("fragments", "text"), [
    (lambda model: [model[0]], "holds 4 parameters that are in no fragment"),
    (lambda model: nn.ModuleList([model[2], model[4]]), "holds 2 parameters that are in no fragment"),
    (lambda model: [model, model[0]], "is a parameter of two fragments"),
    (lambda model: [], "a torch.nn.Module, or a list of them"),
])  # fmt: skip
def test_fragments_that_are_not_the_model_are_refused(fragments, text):
    model = make_model()
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.DiLoCo(fragments(model), sgd(model), sync_every=4)


def test_within_the_global_parameters_nothing_goes_on(rank):
    model = make_model()
    optimizer = sgd(model)
    diloco = hvd.DiLoCo(model, optimizer, sync_every=3)
    with diloco:
        train(model, optimizer, rank, range(4))
        own = copy.deepcopy(model)
        with diloco.global_parameters():
            assert_replicas_identical(model)
            state = {}
            for refused in (diloco.sync, diloco.finish):
                with pytest.raises(InvalidArgumentError, match="within global_parameters"):
                    refused()
            with pytest.raises(InvalidArgumentError, match="within global_parameters"):
                diloco.load_state_dict(state)
        assert_same_bits(model, own)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def reread(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def local_sgd(model, optimizer, **arguments):
    return hvd.LocalSGD(model, optimizer, sync_every=4, delay=2, min_numel=0, **arguments)


def diloco(model, optimizer, **arguments):
    return hvd.DiLoCo(model, optimizer, sync_every=4, num_fragments=2, fragment_sync_delay=1, min_numel=0, **arguments)


def diloco_with_adam(model, optimizer, **arguments):
    return hvd.DiLoCo(model, optimizer, adam(model), 4, min_numel=0, **arguments)


def diloco_by_ps(model, optimizer, **arguments):
    return diloco(model, optimizer, topology="ps", **arguments)


KINDS = [local_sgd, diloco, diloco_with_adam]


@pytest.mark.parametrize("kind", [*KINDS, diloco_by_ps])
@pytest.mark.parametrize(
    ("codec", "steps"), [("none", 6), ("onebit", 5), ("powersgd(rank=2)", 7), ("onebit", 4), ("onebit", 7)]
)
def test_a_job_goes_on_bit_for_bit(rank, kind, codec, steps):
    def run(numbers, saved=None, save_before=None):
        new_session()
        model = make_model()
        optimizer = adam(model)
        relaxed, state = kind(model, optimizer, compression=codec), None
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            relaxed.load_state_dict(saved["relaxed"])
        with pytest.raises(_Stopped), relaxed:
            for number in numbers:
                if number == save_before:
                    parts = {"model": model, "optimizer": optimizer, "relaxed": relaxed}
                    state = reread({name: part.state_dict() for name, part in parts.items()})
                train(model, optimizer, rank, [number])
            relaxed.flush()
            raise _Stopped
        return model, state

    whole, saved = run(range(13), save_before=steps)
    resumed, _ = run(range(steps, 13), saved)
    assert_same_bits(resumed, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_another_number_have_the_global_parameters(rank, size, several, kind):
    model = make_model()
    optimizer = sgd(model)
    relaxed = kind(model, optimizer, compression="onebit")
    with relaxed:
        train(model, optimizer, rank, range(6))
        state = hvd.broadcast_object(reread(relaxed.state_dict()))
    pair = hvd.ProcessSet([0, size - 1])
    new_session(process_sets=[pair] if size > 2 else None)
    if size > 2 and not pair.included():
        return
    others = {"process_set": pair} if size > 2 else {}
    resumed = make_model(seed=1)
    optimizer = sgd(resumed)
    relaxed = kind(resumed, optimizer, compression="onebit", **others)
    relaxed.load_state_dict(state)
    rows = hvd.allgather(resumed[0].weight.detach()[None], **others)
    if size > 2:
        assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], state["global"][next(iter(state["global"]))])
    with relaxed:
        train(resumed, optimizer, rank, range(5))
    rows = hvd.allgather(resumed[0].weight.detach()[None], **others)
    assert torch.equal(rows[0], rows[1])


def test_its_own_state_changes_nothing(rank):
    model = make_model()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=4) as local:
        train(model, optimizer, rank, range(6))
        before = copy.deepcopy(model)
        local.load_state_dict(local.state_dict())
        assert_same_bits(model, before)


def test_a_checkpoint_of_the_warmup_has_its_parameters(rank, size, several):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    relaxed = hvd.DiLoCo(model, optimizer, sync_every=4, warmup_steps=6)
    with relaxed:
        train(model, optimizer, rank, range(3))
        state = reread(relaxed.state_dict())
        at_save = copy.deepcopy(model)
        train(model, optimizer, rank, range(3, 6))
        relaxed.load_state_dict(state)
        assert_same_bits(model, at_save)
        train(model, optimizer, rank, range(3, 6))
        assert_replicas_identical(model)
        train(model, optimizer, rank, [6])
        relaxed.load_state_dict({key: value for key, value in state.items() if not key.startswith("rank ")})
        assert_same_bits(model, at_save)
        train(model, optimizer, rank, [3])  # gradients are averaged again
        assert_replicas_identical(model)


@pytest.fixture
def folder(tmp_path_factory):
    return hvd.broadcast_object(str(tmp_path_factory.mktemp("dcp")), 0)


def test_distributed_checkpoint_of_local_sgd(gloo, rank, folder):
    def made():
        model = make_model()
        optimizer = sgd(model)
        return model, optimizer, hvd.LocalSGD(model, optimizer, sync_every=4)

    model, optimizer, local = made()
    with pytest.raises(_Stopped), local:
        train(model, optimizer, rank, range(6))
        dcp.save({"local": local}, checkpoint_id=folder)
        raise _Stopped
    resumed, _, other = made()
    dcp.load({"local": other}, checkpoint_id=folder)
    assert_same_bits(resumed, model)
    assert other.rounds.step_count == 6


def test_distributed_checkpoint_that_would_lack_a_part_is_refused(gloo, rank, folder):
    """It loads only what there is before, and momentum is not there before the first round."""
    model = make_model()
    optimizer = sgd(model)
    with hvd.DiLoCo(model, optimizer, sync_every=4) as relaxed:
        train(model, optimizer, rank, range(6))
        dcp.save({"diloco": relaxed}, checkpoint_id=folder)
    with pytest.raises(Exception, match=r"lacks a part of what was saved.*torch\.save\(\)"):
        dcp.load({"diloco": hvd.DiLoCo(model, optimizer, sync_every=4)}, checkpoint_id=folder)


@pytest.mark.parametrize(("other", "text"), [
    (lambda model: hvd.DiLoCo(model, sgd(model), adam(model), 4, num_fragments=2), "of the outer optimizers 0 SGD"),
    (lambda model: hvd.DiLoCo(model, sgd(model), sync_every=4, num_fragments=3), "has 2 fragments, and there are 3"),
    (lambda model: hvd.DiLoCo(model, sgd(model), sync_every=4, num_fragments=2, buffers="local"), "buffer 1.num_"),
])  # fmt: skip
def test_a_state_of_other_settings_is_refused(rank, other, text):
    def made():
        return nn.Sequential(make_model(), nn.BatchNorm1d(4))

    model = made()
    optimizer = sgd(model)
    with hvd.DiLoCo(model, optimizer, sync_every=4, num_fragments=2) as relaxed:
        train(model, optimizer, rank, range(5))
        state = relaxed.state_dict()
    with pytest.raises(InvalidArgumentError, match=text):
        other(made()).load_state_dict(state)
