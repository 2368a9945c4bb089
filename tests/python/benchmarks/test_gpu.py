"""`make bench-gpu` on the stand-in, with a program in the place of the one that runs codecs, which ctest runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.files import ROOT
from support.standin import driver
from support.standin.programs import said

PROGRAM = f"""#!{sys.executable}
import json, os, sys
codec, common, code, repeats, elements, *tensors = sys.argv[1:]
assert open(common).read() == "common" and open(code).read() == codec.partition("(")[0], sys.argv
for count in map(int, tensors):
    seconds = dict(copy_s=1e-3, encode_s=2e-3, merge_s=4e-3)
    print(json.dumps(dict(tensors=count, bytes=4 * int(elements), **seconds)), flush=True)
"""
RUN = """
import sys
sys.path[:0] = PATHS
from benchmarks.gpu import __main__ as bench, codecs
codecs.device_code.cubin_of = lambda text, architecture: text.encode()
codecs.text_of = lambda name: name
sys.argv[1:] = ARGUMENTS
bench.main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "gpu_codecs"
    path.write_text(PROGRAM, encoding="utf-8")
    path.chmod(0o700)
    return path


def bench(tmp_path: Path, *arguments: str) -> tuple[list[str], dict]:
    """The lines that it prints, and the JSON."""
    file = tmp_path / "gpu.json"
    paths = [*sys.path, str(ROOT)]
    given = [*arguments, "--repeats", "1", "--mib", "0.1", "--json", str(file)]
    text = RUN.replace("PATHS", repr(paths)).replace("ARGUMENTS", repr(given))
    printed = said(text, CASYNC_CUDA_DRIVER=str(driver.library())).splitlines()
    return printed, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def test_each_codec_has_a_line_for_one_tensor_and_for_many(program: Path, tmp_path: Path) -> None:
    printed, found = bench(tmp_path, "codecs", "--program", str(program))
    assert len(printed) == 2 + 4 * 3
    line = "onebit, 0.09375 MiB as 38 tensors"
    assert f"{line}: encode 0.50, merge 0.25 of a copy" in printed
    assert found[line] == {"encode, of a copy": 0.5, "merge, of a copy": 0.25}
    assert found[f"{line}, all figures"]["bytes"] == 24 * 4096


def test_one_tensor_is_copied_through_the_host(tmp_path: Path) -> None:
    printed, found = bench(tmp_path, "tensor")
    assert len(printed) == 3 and "CaSync there and back" in printed[1]
    assert list(found) == ["machine", "repeats", "one tensor of 0.09375 MiB"]


def test_a_program_that_fails_ends_the_run_and_keeps_what_it_had(program: Path, tmp_path: Path) -> None:
    program.write_text(f"{PROGRAM}    sys.exit(codec == 'graddrop')\n", encoding="utf-8")
    printed, found = bench(tmp_path, "codecs", "--program", str(program))
    assert "CalledProcessError" in printed[-1]
    assert "graddrop, 0.09375 MiB as 1 tensor" in found


def test_what_is_not_there_to_measure_is_refused(tmp_path: Path) -> None:
    printed, found = bench(tmp_path, "network")
    assert "there is no network: choose from tensor, step, codecs" in printed[-1] and not found
