"""The same gradients with the same codec: results, residuals and bytes on the wire are alike in all frameworks."""

import hashlib
from importlib.util import find_spec

import casync.numpy as hvd
import numpy as np
import pytest

from casync.session import default
from support.bindings import binding_of, is_there

FRAMEWORKS = ("numpy", "torch", "tensorflow", "tensorflow_graph", "mxnet", "jax")
CODECS = [
    "none", "fp16", "bf16", "onebit", "terngrad(bits=2)", "tbq(tau=0.5)", "dgc(ratio=0.1)", "graddrop(drop=0.9)",
    "adacomp", "threelc", "powersgd(rank=2, start_step=1)",
]  # fmt: skip
SHAPE = (60, 100)
STEPS = 4


@pytest.fixture(scope="session")
def gradients(tmp_path_factory):
    """By step and rank, out of one file."""
    path = tmp_path_factory.mktemp("gradients") / "gradients.npy"
    np.save(path, np.random.default_rng(0).standard_normal((STEPS, 8, *SHAPE)).astype(np.float32))
    return np.load(path)


def seen_with(name, codec, gradients, rank):
    """What comes out in each step, what is kept, and what was sent, of a session of its own."""
    binding = binding_of(name)
    default.shutdown()
    default.init(timeout_s=20.0)
    results = []
    for step in gradients:
        mine = binding.tensor(step[rank])
        result = binding.hvd.allreduce(mine, name="gradient", compression=f"always({codec})", topology="direct")
        results.append(hashlib.sha256(binding.array(result).tobytes()).hexdigest())
    states = default.session().codec_states
    residual = [states.residual(tensor).tobytes() for tensor in sorted(states.residual_names())]
    kept = [
        (tensor, key, array["values"].tobytes())
        for tensor in sorted(states.state_names())
        for key, array in sorted(states.state(tensor)["arrays"].items())
    ]
    sent = {
        (codec, peer): traffic.wire_bytes
        for codec, metrics in hvd.metrics().codecs.items()
        for peer, traffic in metrics.sent.items()
    }
    return results, residual, kept, sent


@pytest.mark.parametrize("codec", CODECS)
def test_all_frameworks_are_alike(codec, gradients, rank):
    there = [name for name in FRAMEWORKS if is_there(name) and find_spec(f"support.bindings.{name}")]
    assert len(there) > 2
    expected = seen_with("numpy", codec, gradients, rank)
    for name in there[1:]:
        assert seen_with(name, codec, gradients, rank) == expected, name
