"""`feedback_bits=8`: residuals that are kept in a quarter of the memory."""

from __future__ import annotations

import numpy as np
import pytest

from casync.session import default

NUMEL, STEPS = 60_011, 6
CODECS = ["onebit(", "topk(ratio=0.05, ", "powersgd(rank=2, start_step=0, ", "int4("]
pytestmark = pytest.mark.usefixtures("several")


def gradient_of(step, rank, shape):
    return np.random.default_rng((step, rank)).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=CODECS)
def codec(request):
    return request.param


@pytest.fixture
def shape(codec):
    return (151, 397) if codec.startswith("powersgd") else (NUMEL,)


class Training:
    """Steps of one gradient."""

    def __init__(self, adaptor, compression, shape, rank, topology=None):
        self.adaptor, self.shape, self.rank = adaptor, shape, rank
        self.terms = {"name": "w", "compression": f"always({compression})", "topology": topology}

    def step(self, step, bad=False):
        values = gradient_of(step, self.rank, self.shape)
        if bad:
            values.reshape(-1)[::100] = np.nan
        return self.adaptor.array(self.adaptor.hvd.allreduce(self.adaptor.tensor(values), **self.terms))

    def steps(self, steps):
        return [self.step(step) for step in steps]


def kept():
    """The residual of the gradient on this rank, and the memory of all that is kept."""
    session = default.session()
    (tensor,) = session.codec_states.residual_names()
    return tensor, session.codec_states.residual(tensor), session.counters()["residual_bytes"]


@pytest.mark.parametrize("topology", ["direct", "ps", "ring"])
def test_it_is_as_near_to_the_sum_as_with_32_bits(adaptor, hvd, codec, shape, topology, rank, size):
    if topology == "ring" and codec.startswith("powersgd"):
        pytest.skip("as by ps")
    exact = Training(adaptor, f"{codec}feedback_bits=32)", shape, rank, topology).steps(range(STEPS))
    _, residual, memory = kept()
    default.shutdown()
    default.init()
    packed = Training(adaptor, f"{codec}feedback_bits=8)", shape, rank, topology).steps(range(STEPS))
    _, rounded, less = kept()
    np.testing.assert_array_equal(packed[0], exact[0], "there is no residual yet")
    assert len(set(hvd.allgather_object(packed[-1].tobytes()))) == 1, "replicas are identical"
    assert less < memory
    if not codec.startswith("powersgd"):  # which keeps Q
        assert less < 0.27 * memory
    assert rounded.size == residual.size == np.prod(shape)
    due = sum(gradient_of(step, one, shape) for step in range(STEPS) for one in range(size)) / np.float32(size)
    off, usual = (np.linalg.norm(np.sum(outputs, axis=0) - due) for outputs in (packed, exact))
    assert off < 1.02 * usual


def test_what_rounding_loses_is_no_bias(adaptor, hvd, codec, shape, rank, size):
    """N times the outputs and the residuals are the sum of the gradients, but for levels up or down, of mean 0."""
    outputs = Training(adaptor, f"{codec}feedback_bits=8)", shape, rank).steps(range(STEPS))
    residuals = np.sum(hvd.allgather_object(kept()[1]), axis=0, dtype=np.float64)
    given = sum(gradient_of(step, one, shape).astype(np.float64) for step in range(STEPS) for one in range(size))
    off = size * np.sum(outputs, axis=0, dtype=np.float64).ravel() + residuals - given.ravel()
    assert 0 < off.std() < 0.2
    assert abs(off.mean()) < 5 * off.std() / np.sqrt(off.size)


def test_a_checkpoint_goes_on_as_if_nothing_had_been(adaptor, hvd, codec, shape, rank, tmp_path_factory):
    spec = f"{codec}feedback_bits=8)"
    expected = Training(adaptor, spec, shape, rank).steps(range(STEPS))
    tensor, last, _ = kept()
    default.shutdown()
    default.init()
    Training(adaptor, spec, shape, rank).steps(range(3))
    states = default.session().codec_states
    residual, state = states.residual(tensor), states.state(tensor)
    default.shutdown()
    default.init()
    states = default.session().codec_states
    states.set_residual(tensor, residual)
    states.set_state(tensor, state)
    again = Training(adaptor, spec, shape, rank)
    for step in range(3, STEPS):
        np.testing.assert_array_equal(again.step(step), expected[step])
    np.testing.assert_array_equal(kept()[1], last)


def test_a_void_step_changes_nothing(adaptor, hvd, codec, shape, rank, size):
    training = Training(adaptor, f"{codec}feedback_bits=8, feedback_decay=0.5)", shape, rank, "direct")
    training.steps(range(2))
    before = kept()[1]
    training.step(2, bad=rank == size - 1)
    if rank == size - 1:
        np.testing.assert_array_equal(kept()[1], before)


def test_another_plan_takes_it_over(adaptor, hvd, rank, size):
    """Other partitions, 32 bits and back: nothing of the mass is lost but levels."""
    outputs = []
    for step, (bits, topology) in enumerate([(8, "ps"), (8, "direct"), (32, "direct"), (8, "ring")]):
        training = Training(adaptor, f"onebit(feedback_bits={bits})", (NUMEL,), rank, topology)
        outputs.append(training.step(step))
    residuals = np.sum(hvd.allgather_object(kept()[1]), axis=0, dtype=np.float64)
    given = sum(gradient_of(step, one, (NUMEL,)).astype(np.float64) for step in range(4) for one in range(size))
    off = size * np.sum(outputs, axis=0, dtype=np.float64) + residuals - given
    assert off.std() < 0.2
    assert abs(off.mean()) < 5 * off.std() / np.sqrt(off.size)


def test_a_checkpoint_of_another_world_keeps_its_mass(adaptor, hvd, rank, size):
    """Every rank is given the mean of what the ranks there held back, for partitions that it was not cut for."""
    mean = gradient_of(99, 0, (NUMEL,))
    training = Training(adaptor, "onebit(feedback_bits=8)", (NUMEL,), rank)
    training.step(0)
    tensor = kept()[0]
    default.shutdown()
    default.init()
    default.session().codec_states.set_residual(tensor, mean)
    output = training.step(0).astype(np.float64)
    residuals = np.sum(hvd.allgather_object(kept()[1]), axis=0, dtype=np.float64)
    off = size * output + residuals - sum(gradient_of(0, one, (NUMEL,)) for one in range(size)) - size * mean
    assert 0 < off.std() < 0.1
    assert abs(off.mean()) < 5 * off.std() / np.sqrt(off.size)
