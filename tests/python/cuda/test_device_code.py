"""Codecs on a GPU, on the stand-in: who has their device code compiled, and what happens without a compiler."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from casync import _core
from casync.codecs import device_code
from casync.compll.cuda.texts import COMMON, text_of
from casync.compll.library import library_files
from casync.errors import NotAvailableError
from support.standin.programs import BEGIN, run

UNITS = Path(__file__).parents[2] / "compll" / "units"
ABSMAX = Path(__file__).parents[2] / "compll" / "quantisers" / "absmax.cll"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")

TRAIN = """
rng = numpy.random.default_rng(hvd.rank())
for step in range(4):
    before = script.standin_launches()
    gradient = tensors.from_host(rng.standard_normal(1 << 16, "float32"))
    hvd.allreduce_(gradient, name="w", compression=CODEC)
    launched = script.standin_launches() - before
    print(hvd.rank(), step, launched > 0, tensors.to_host(gradient).sum(), flush=True)
hvd.shutdown()
"""

WITHOUT_COMPILER = """
from casync.codecs import device_code
def cubin_of(text, architecture):
    raise errors.NotAvailableError('no NVRTC: pip install nvidia-cuda-nvrtc')
device_code.cubin_of = cubin_of
"""


@needs_compiler
@pytest.mark.parametrize(
    ("codec", "is_there"),
    [
        ("onebit", True),
        ("terngrad(bits=8)", True),
        ("always(onebit)", True),
        ("tbq", True),
        ("dgc(ratio=0.01)", True),
        ("adacomp", True),
        ("fp16", True),
        ("bf16", True),
        ("none", False),
        ("powersgd(rank=2)", True),  # it begins later, and what goes until then is computed there, too
    ],
)
def test_from_its_second_step_on_a_gradient_is_compressed_where_it_is(
    codec: str, is_there: bool, tmp_path: Path
) -> None:
    lines = run(2, f"{BEGIN}CODEC = {codec!r}\n{TRAIN}", tmp_path)
    steps = [line.split() for line in lines]
    assert [(step, launched) for _, step, launched, _ in steps] == [
        (str(step), str(is_there and step > 0)) for _ in range(2) for step in range(4)
    ]
    sums = [found for *_, found in steps]
    assert sums[:4] == sums[4:], "replicas are identical"


@needs_compiler
@pytest.mark.parametrize("file", [ABSMAX, UNITS / "filters.cll", UNITS / "draws.cll"], ids=lambda path: path.stem)
def test_a_file_of_ones_own_is_computed_there_too(file: Path, tmp_path: Path) -> None:
    on_device = run(2, f"{BEGIN}CODEC = {str(file)!r}\n{TRAIN}", tmp_path)
    assert [line.split()[2] for line in on_device] == ["False", "True", "True", "True"] * 2
    on_cpu = run(2, f"{BEGIN}{WITHOUT_COMPILER}CODEC = {str(file)!r}\n{TRAIN}", tmp_path)
    assert [line.split()[3] for line in on_cpu] == [line.split()[3] for line in on_device]


@needs_compiler
def test_without_a_compiler_the_cpu_gives_the_same_and_a_warning_says_why(tmp_path: Path) -> None:
    on_device = run(2, f"{BEGIN}CODEC = 'onebit'\n{TRAIN}", tmp_path)
    on_cpu = run(2, f"{BEGIN}{WITHOUT_COMPILER}CODEC = 'onebit'\n{TRAIN}", tmp_path)
    assert [line.split()[3] for line in on_cpu] == [line.split()[3] for line in on_device]
    assert {line.split()[2] for line in on_cpu} == {"False"}


def test_a_missing_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(text: str, architecture: str) -> bytes:
        raise NotAvailableError("no NVRTC")

    monkeypatch.setattr(device_code, "cubin_of", missing)
    monkeypatch.setattr(_core, "cuda_facts", lambda: {"devices": [{"capability": (9, 0)}]})
    with caplog.at_level(logging.WARNING, "casync"):
        device_code.add(None, 0, ["onebit"])
    assert [record.getMessage() for record in caplog.records] == [
        "gradients on the GPU are compressed by the CPU: no NVRTC"
    ]


def test_each_codec_of_the_library_has_device_code() -> None:
    assert {spec.partition("(")[0] for name in library_files() for spec in _core.device_codecs(name)} == set(
        library_files()
    )
    assert _core.device_codecs("none") == []
    assert _core.device_codecs("always(auto(onebit, fp16, terngrad(bits=4)))") == ["onebit", "fp16", "terngrad(bits=4)"]
    assert text_of("fp16") == text_of("bf16") == "", "what all codecs have is enough for them"
    assert all("CASYNC_KERNEL" in text_of(name) for name in library_files())
    assert "report.hpp" in text_of(COMMON)
