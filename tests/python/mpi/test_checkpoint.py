"""casync.save_state and load_state: a job that goes on as if it had not been interrupted."""

import io
import json
import shutil
from pathlib import Path

import casync.torch as hvd
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import casync
from casync.checkpoint.job import _whole
from casync.errors import InvalidArgumentError, StorageError
from casync.session import default
from support.replicas import assert_same_bits
from support.training import new_session

CODECS = [
    "terngrad(bits=2)",
    "onebit",
    "dgc(ratio=0.05, warmup_steps=1)",
    "powersgd(rank=2, start_step=1)",
    "graddrop(drop=0.9)",
    "tbq",
    "int4",
    "onebit(start_step=1)",
    "covap(none, interval=3)",
    "covap(onebit, interval=3)",
]


@pytest.fixture
def folder(tmp_path_factory, rank):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("state") / "checkpoint"), 0)
    yield path
    hvd.barrier()
    if rank == 0:
        shutil.rmtree(path, ignore_errors=True)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 150), nn.ReLU(), nn.Linear(150, 40), nn.ReLU(), nn.Linear(40, 4))


class Job:
    """A training job on this rank, from its start or from a checkpoint."""

    def __init__(self, compression, folder=None, saved=None, loads_first=False):
        self.model = make_model()
        self.step = 0
        if folder and loads_first:
            casync.load_state(folder)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters(), compression=compression)
        if saved is not None:
            held = torch.load(io.BytesIO(saved), weights_only=True)
            self.model.load_state_dict(held["model"])
            self.optimizer.load_shared_state_dict(held["optimizer"])
            self.step = held["step"]
        if folder and not loads_first:
            casync.load_state(folder)

    def train(self, steps):
        for _ in range(steps):
            self.step += 1
            generator = torch.Generator().manual_seed(1000 * self.step + hvd.rank())
            self.optimizer.zero_grad()
            labels = torch.randint(0, 4, (8,), generator=generator)
            F.cross_entropy(self.model(torch.randn(8, 30, generator=generator)), labels).backward()
            self.optimizer.step()
        return self

    def save(self, folder):
        casync.save_state(folder)
        file = io.BytesIO()
        shared = {key: value for key, value in self.optimizer.state_dict().items() if key != "casync"}
        torch.save({"model": self.model.state_dict(), "optimizer": shared, "step": self.step}, file)
        return file.getvalue()


@pytest.mark.parametrize("loads_first", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_interrupted_and_resumed_is_uninterrupted(folder, codec, loads_first):
    compression = {"*.bias": "none", "*": f"always({codec})"}
    job = Job(compression).train(4)
    saved = job.save(folder)
    job.train(4)
    new_session()
    assert_same_bits(Job(compression, folder, saved, loads_first).train(4).model, job.model)


def test_a_state_without_residuals_that_is_loaded_last_is_no_secret(folder, caplog, size):
    job = Job("always(onebit)").train(2)
    job.save(folder)
    held = {key: value for key, value in job.optimizer.state_dict().items() if key != "casync"}
    new_session()
    job = Job("always(onebit)", folder)
    job.optimizer.load_state_dict(held)
    warned = "residuals start anew" in caplog.text and "load_state_dict()" in caplog.text
    assert warned == (size > 1), "a world of one encodes nothing: it has no residual to lose"


def train_until(job, seen):
    """Train until some gradient has such a plan: when the codecs are timed depends on the machine."""
    for _ in range(200):
        job.train(1)
        if hvd.size() == 1 or any(map(seen, hvd.plans().values())):
            return
    raise AssertionError(f"no such plan: {hvd.plans()}")


def test_an_automatic_plan_is_kept(folder, size):
    compression = "always(auto(onebit, terngrad(bits=8)))"
    job = Job(compression)
    train_until(job, lambda plan: "compared" in plan.reason)
    saved = job.save(folder)
    plans = hvd.plans()
    job.train(4)
    new_session()
    resumed = Job(compression, folder, saved).train(4)
    assert hvd.plans() == plans
    assert_same_bits(resumed.model, job.model)


def test_a_plan_on_trial_is_not_kept(folder, size):
    compression = "always(auto(onebit, terngrad(bits=8)))"
    job = Job(compression)
    train_until(job, lambda plan: plan.on_trial)
    job.save(folder)
    new_session()
    casync.load_state(folder)
    Job(compression).train(1)
    assert not any(plan.on_trial or "measured" in plan.reason for plan in hvd.plans().values())


def test_a_plan_that_was_made_already_gives_way(folder, size):
    compression = "always(auto(onebit, fp16))"
    Job(compression).train(1).save(folder)
    with open(f"{folder}/casync.json", encoding="utf-8") as file:
        content = json.load(file)
    for plan in content["plans"].values():
        plan.update(codec="bf16", topology="direct", partitions=1, until=0, reason="by hand")
    hvd.barrier()
    if hvd.rank() == 0:
        with open(f"{folder}/casync.json", "w", encoding="utf-8") as file:
            json.dump(content, file)
    hvd.barrier()
    job = Job(compression).train(1)
    casync.load_state(folder)
    job.train(1)
    if size > 1:
        plans = hvd.plans()
        assert {plans[f"allreduce.{name}.weight"].codec for name in (0, 2)} == {"bf16"}


@pytest.mark.parametrize("codec", CODECS)
def test_on_fewer_ranks_the_mean_of_what_is_pending_stays(folder, rank, size, codec):
    if size == 1:
        pytest.skip("there is no smaller world")
    compression = {"*.bias": "none", "*": f"always({codec})"}
    Job(compression).train(4).save(folder)
    before = means_of_own()
    hvd.shutdown()
    fewer = list(range(size - 1))
    hvd.init(comm=fewer if rank in fewer else [rank], timeout_s=20.0)  # all ranks open as many sessions
    if rank in fewer:
        casync.load_state(folder)
        after = means_of_own()
        states = default.session().codec_states
        steps = {name: states.state(name)["steps"] for name in states.state_names()}
        assert before.keys() == after.keys()
        for name, mean in before.items():
            np.testing.assert_allclose(after[name], mean, rtol=1e-6, atol=1e-7, err_msg=name)
        assert all(count == 4 for count in steps.values())
    new_session()


def means_of_own() -> dict[str, np.ndarray]:
    """Over the ranks: residuals and every state array."""
    states = default.session().codec_states
    arrays = {name: states.residual(name) for name in states.residual_names()}
    for tensor in states.state_names():
        for name, of in states.state(tensor)["arrays"].items():
            arrays[f"{tensor} {name}"] = of["values"]
    return {
        name: hvd.allreduce(torch.from_numpy(values).double(), name=f"mean.{name}").numpy()
        for name, values in sorted(arrays.items())
    }


def test_who_cannot_write_is_named_on_all_ranks_and_the_old_state_stays(folder, rank, size, monkeypatch):
    job = Job("always(onebit)").train(2)
    saved = job.save(folder)
    if rank == size - 1:
        monkeypatch.setattr(np, "savez", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    job.train(1)
    with pytest.raises(hvd.CasyncError, match=rf"rank {size - 1}: OSError: .*No space left"):
        casync.save_state(folder)
    new_session()
    Job("always(onebit)", folder, saved).train(1)


def test_a_missing_folder_is_named_on_all_ranks(folder):
    with pytest.raises(hvd.CasyncError, match=r"rank 0: FileNotFoundError: .*checkpoint"):
        casync.load_state(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def rob(path):
    """A good file that lacks what belongs into it."""
    with path.open("wb") as file:
        np.savez(file)


def rubbish(path):
    path.write_bytes(b"PK\x03\x04" + b"\xff" * 1000)


@pytest.mark.parametrize("damage", [cut, empty, flip, rob, rubbish])
def test_a_damaged_shard_is_an_error_on_all_ranks(folder, rank, size, damage):
    if size == 1 and damage in (flip, rob):
        pytest.skip("one rank compresses nothing, so that its file holds nothing that could be damaged")
    Job("always(onebit)").train(2).save(folder)
    hvd.barrier()
    if rank == 0:
        (shard,) = Path(folder).glob(f"casync-*-{size - 1:05}.npz")
        damage(shard)
    hvd.barrier()
    with pytest.raises(hvd.CasyncError, match=f"rank {size - 1}: "):
        casync.load_state(folder)
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [size] * 3


def test_a_manifest_that_is_no_table_is_an_error_on_all_ranks(folder, rank):
    Job("always(onebit)").train(2).save(folder)
    for said in ("[]", "{", '{"format": "casync-state", "version": 1}', "[" * 100_000):
        hvd.barrier()
        if rank == 0:
            (Path(folder) / "casync.json").write_text(said)
        hvd.barrier()
        with pytest.raises(hvd.CasyncError):
            casync.load_state(folder)


def one_residual(change):
    """Damage that leaves a good file: `change` makes another array of each residual."""

    def damage(path):
        with np.load(path) as file:
            arrays = {key: change(values) if key.startswith("residual/") else values for key, values in file.items()}
        with path.open("wb") as file:
            np.savez(file, **arrays)

    return damage


DAMAGED = {
    "cut": (lambda values: values[:10], r"array residual/\S+ has 10 numbers, and casync.json says \d+"),
    "number": (lambda values: values[0], r"array residual/\S+ is of dtype float32 and shape \(\)"),
    "folded": (lambda values: values.reshape(2, -1), r"shape \(2, \d+\), and should be a row of floats"),
    "words": (lambda values: np.array(["a"]), "is of dtype <U1"),
    "nan": (lambda values: values * np.nan, r"array residual/\S+ has NaN or infinity"),
}


def kept():
    states = default.session().codec_states
    return {name: states.residual(name).tobytes() for name in states.residual_names()}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_residual_that_cannot_be_is_named_on_all_ranks_and_the_session_goes_on(folder, rank, size, damage):
    if size == 1:
        pytest.skip("one rank compresses nothing, and has no residual")
    Job({"*.bias": "none", "*": "always(onebit)"}).train(2).save(folder)
    change, said = DAMAGED[damage]
    hvd.barrier()
    if rank == 0:
        (shard,) = Path(folder).glob(f"casync-*-{size - 1:05}.npz")
        one_residual(change)(shard)
    hvd.barrier()
    before = kept()
    with pytest.raises(
        StorageError, match=rf"rank {size - 1}: StorageError: \S+{size - 1:05}.npz is damaged: .*{said}"
    ):
        casync.load_state(folder)
    assert kept() == before and before
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [size] * 3


def change_manifest(folder, change):
    hvd.barrier()
    path = Path(folder) / "casync.json"
    if hvd.rank() == 0:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    hvd.barrier()


@pytest.mark.parametrize(("name", "value"), [
    ("save", 5), ("save", "../x"), ("size", 1), ("size", 0), ("size", 2.0), ("size", True), ("size", "2"),
])  # fmt: skip
def test_a_manifest_that_cannot_be_is_named_on_all_ranks(folder, size, name, value):
    if (name, value) == ("size", size):
        pytest.skip("that is its size")
    Job("always(onebit)").train(2).save(folder)
    change_manifest(folder, lambda content: content.update({name: value}))
    with pytest.raises(
        StorageError, match=rf"rank {size - 1}: StorageError: \S+casync.json is damaged: {name}={value!r}"
    ):
        casync.load_state(folder)
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [size] * 3


def test_a_checkpoint_that_does_not_say_its_lengths_is_read(folder):
    Job("always(onebit)").train(2).save(folder)
    before = kept()
    change_manifest(folder, lambda content: content.pop("lengths"))
    Job("always(onebit)").train(1)
    casync.load_state(folder)
    assert kept() == before


@pytest.mark.parametrize("given", [b"state", None, 5])
def test_a_folder_that_is_no_path_is_refused(given):
    for call in (casync.save_state, casync.load_state):
        with pytest.raises(InvalidArgumentError, match="folder=.*it must be a path"):
            call(given)


def test_damage_in_a_folder_whose_name_is_no_text_is_named(tmp_path):
    folder = tmp_path / "\udcff"
    folder.mkdir()
    (folder / "casync.json").write_text("[]")
    with pytest.raises(StorageError, match=r"rank 0: .*\\udcff/casync.json is not a state"):
        casync.load_state(folder)


def test_two_hosts_whose_processes_have_one_number_write_one_folder(tmp_path):
    """As containers have, in which each process is number 1."""
    target = tmp_path / "casync.json"
    one, other = _whole(target, "save-00000"), _whole(target, "save-00002")
    with one as first, other as second:
        first.write_text("whole")
        second.write_text("whole")
    assert target.read_text() == "whole" and list(tmp_path.iterdir()) == [target]


def test_states_of_two_saves_are_not_mixed(folder, rank, size):
    Job("always(onebit)").train(1).save(folder)
    hvd.barrier()
    other = f"{folder}-other"
    Job("always(onebit)").train(1).save(other)
    if size > 1:
        with pytest.raises(hvd.CasyncError, match="holds another state on rank 1 than on rank 0"):
            casync.load_state(folder if rank == 0 else other)
    hvd.barrier()
    if rank == 0:
        shutil.rmtree(other)


def test_one_save_replaces_the_other(folder, size):
    job = Job("always(onebit)").train(1)
    job.save(folder)
    job.train(1).save(folder)
    hvd.barrier()
    from pathlib import Path

    assert len(list(Path(folder).iterdir())) == size + 1


def test_outstanding_operations_come_first(folder, size):
    if size == 1:
        pytest.skip("nothing is outstanding in a world of one")
    handle = hvd.allreduce_async(torch.ones(3), name="outstanding")
    with pytest.raises(ValueError, match="outstanding"):
        casync.save_state(folder)
    hvd.synchronize(handle)


@pytest.mark.parametrize("codec", CODECS)
def test_flushing_sends_what_is_pending(codec, size):
    """Plain SGD is linear in the gradients: with what was held back, the sum of all steps is the uncompressed one."""
    if size == 1:
        pytest.skip("nothing is held back in a world of one")
    momentum = {"momentum": 0.0} if "dgc" in codec else {}

    def run(compression, **arguments):
        parameter = nn.Parameter(torch.zeros(60, 50))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=0.5), [("p", parameter)], compression=compression, **arguments
        )
        for step in range(5):
            generator = torch.Generator().manual_seed(10 * step + hvd.rank())
            parameter.grad = None
            (parameter * torch.randn(60, 50, generator=generator)).sum().backward()
            optimizer.step()
        return parameter, optimizer

    plain, _ = run("none")
    parameter, optimizer = run(f"always({codec})", **momentum)
    lossy = not torch.allclose(parameter, plain, atol=1e-4)
    optimizer.flush_residuals()
    with optimizer.skip_synchronize():
        optimizer.step()
    if "terngrad" not in codec:  # which is unbiased, and holds nothing back
        assert lossy
        torch.testing.assert_close(parameter, plain, rtol=1e-4, atol=1e-4)
    optimizer.flush_residuals()
    assert not parameter.grad.any()


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("has_it", ["rank 0", "the last rank"])
def test_a_rank_without_residuals_of_its_own_saves_zeros(folder, has_it, rank, size):
    """As after Horovod's way to resume, where rank 0 alone loads a checkpoint."""
    holder = 0 if has_it == "rank 0" else size - 1
    kept = default.session().codec_states
    if rank == holder:
        kept.set_residual("allreduce.w", np.full(5000, 2.0, np.float32))
    casync.save_state(folder)
    new_session()
    casync.load_state(folder)
    residual = default.session().codec_states.residual("allreduce.w")
    np.testing.assert_array_equal(residual, np.full(5000, 2.0 if rank == holder else 0.0))
