"""What codecs keep of gradients on a GPU, on the stand-in: saved there and resumed on the CPU, and back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.standin.programs import BEGIN, run

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")

PROGRAM = """
from casync.session import default
from casync.collectives.gradient_submits import Gradient, GradientSubmits
from casync.collectives.settings import Settings
from casync.tensors import adaptor_of


class Training:
    def __init__(self, to_tensor, to_array, saved):
        self.to_tensor, self.to_array = to_tensor, to_array
        settings = Settings.of(compression=CODEC, topology=None)
        self.submits = GradientSubmits(adaptor_of(to_tensor(numpy.ones(1, "float32"))), settings, always_claims=True)
        self.gradient = Gradient("w")
        self.submits.take([self.gradient])
        self.submits.load_state_dict([self.gradient], saved, lambda array: array)

    def step(self, number):
        values = numpy.random.default_rng((number, hvd.rank())).standard_normal(1 << 16, "float32")
        owner, tensor = default.session(), self.to_tensor(values)
        self.submits.register(owner, self.gradient, tensor, "float32", values.shape, None)
        owner.synchronize(self.submits.submit(owner, self.gradient, tensor))
        return self.to_array(tensor).tobytes()

    def saved(self):
        return self.submits.state_dict([self.gradient], lambda array: array)


ON = {
    "cpu": (numpy.array, numpy.asarray),
    "gpu": (tensors.from_host, tensors.to_host),
}


def trained(*places):
    \"\"\"The results of three steps in each place, one after the other.\"\"\"
    results, saved = [], None
    for place in places:
        hvd.shutdown()
        hvd.init()
        before = script.standin_launches()
        training = Training(*ON[place], saved)
        results += [training.step(len(results)) for _ in range(3)]
        assert (script.standin_launches() > before) == (place == "gpu")
        saved = training.saved()
    return results, str(saved)


on_cpu = trained("cpu", "cpu", "cpu")
print(trained("gpu", "cpu", "gpu") == on_cpu, trained("cpu", "gpu", "cpu") == on_cpu, flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize("codec", ["onebit", "threelc"])
def test_state_goes_from_a_gpu_to_the_cpu_and_back(codec: str, tmp_path: Path) -> None:
    assert run(2, f"CODEC = {codec!r}\n{BEGIN}{PROGRAM}", tmp_path) == [" True True"] * 2
