"""The conformance kit on sound codecs, and `casync compll test` and `bench` as a user meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from casync import _core, cli
from casync.compll.conformance.checks import CHECKS
from casync.compll.conformance.contract import Segment, Source
from casync.compll.conformance.subject import open_subject
from casync.compll.conformance.trial import perform
from casync.errors import CasyncError, InvalidArgumentError

ROOT = Path(__file__).parents[3]
FOUR_LEVELS = ROOT / "examples" / "02_own_codec" / "four_levels.cll"
BROKEN = ROOT / "tests" / "compll" / "broken" / "nan_swallowed.cll"
# Quantisers, gathered payloads of different lengths, several rounds, state, values agreed on.
SOUND = ["onebit", "terngrad(bits=2)", "terngrad(bits=4)", "terngrad(bits=8)", "fp16", "test_topk(ratio=0.05)"]
SOUND += ["test_tworound", "test_state(gather=0)", "test_state(gather=1)", "test_lowrank(start=7)", str(FOUR_LEVELS)]
# A busy machine takes half a minute to compile a file.
pytestmark = [pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASYNC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("spec", SOUND)
def test_a_sound_codec_passes(spec: str) -> None:
    subject = open_subject(spec)
    failed = [result for check in CHECKS if (result := perform(check, subject)).passed is False]
    assert failed == []


def test_what_a_file_promises_is_read_from_it() -> None:
    assert open_subject("onebit").contractive and not open_subject("onebit").draws
    assert open_subject("terngrad(bits=4)").draws and not open_subject("terngrad(bits=4)").contractive


def test_the_command_prints_a_line_for_each_check(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "test", "onebit"]) == 0
    heading, *lines = capfd.readouterr().out.splitlines()
    assert heading == "onebit: reencode; feedback wrapper; fixed size"
    assert [line[2:].startswith(check.name) for line, check in zip(lines, CHECKS, strict=False)] == [True] * len(CHECKS)
    assert lines[-2].startswith("- cuda") and lines[-1] == f"all {len(CHECKS) - 1} checks passed"
    assert next(line for line in lines if "error" in line).startswith("- ")
    assert "1.25 bits an element" in lines[1] and "baseline" in "".join(lines)


def test_the_command_shows_the_first_counterexample(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "test", str(BROKEN)]) == 1
    lines = capfd.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("✗"))
    assert lines[at].startswith("✗ not finite") and "element 0 decodes to 0.0099999" in lines[at]
    assert "in: 10000 x 1 gradient of float32, normal values, seed 1, element 0 = nan" in lines[at + 1]
    assert "1 of" in lines[-1] and "checks failed" in lines[-1]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("none", "nothing to test"),
        ("oneebit", "known: "),
        ("terngrad(bits=3)", "bits must be 2, 4 or 8"),
        ("nowhere.cll", "cannot be read"),
    ],
)
def test_what_cannot_be_tested_is_said(spec: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "test", spec]) == 1
    assert why in capsys.readouterr().err


def test_bench_has_all_instruction_sets_the_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    before = _core.isa()
    assert cli.main(["compll", "bench", "onebit", "--mib", "1"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert "onebit" in heading and "1 MiB" in heading
    operations = ["encode ", "encode with feedback", "decode ", "decode + merge of 2", "decode + merge of 4"]
    expected = [f"{isa:<10}{operation}" for isa in reversed(_core.isas()) for operation in operations]
    assert [line.startswith(start) for line, start in zip(lines, expected, strict=True)] == [True] * len(expected)
    assert all(float(line.split()[-1]) > 0 for line in lines) and _core.isa() == before


@pytest.mark.parametrize("name", ["topkc", "thc", "randomk", "powersgd"])
def test_bench_merges_payloads_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "bench", name, "--mib", "1"]) == 0
    said = capsys.readouterr().out
    assert "  merge of 2  " in said and "  merge of 4  " in said and "decode + merge" not in said


@pytest.mark.parametrize("mib", ["0", "-3", "many"])
def test_bench_of_no_size_is_refused(mib: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compll", "bench", "onebit", "--mib", mib])


def test_the_binding_refuses_what_it_cannot_hand_on() -> None:
    codec = _core.Codec("onebit")
    strided = np.zeros(20, np.float32)[::2]
    out = np.zeros(10, np.float32)
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        codec.run([Segment((10, 1), (0, 10), [Source(strided, raw=True)], raw_out=out)])
    with pytest.raises(InvalidArgumentError, match="raw_out has 36 bytes, 40 expected"):
        codec.run([Segment((10, 1), (0, 10), [Source(out, raw=True)], raw_out=out[:9])])
    with pytest.raises(InvalidArgumentError, match="no element type 99"):
        codec.run([Segment((10, 1), (0, 10), [Source(out, raw=True)], dtype=99, raw_out=out)])
    constant = np.zeros(10, np.float32)
    constant.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        codec.run([Segment((10, 1), (0, 10), [Source(out, raw=True)], raw_out=constant)])
    with pytest.raises(CasyncError, match="room for 1 bytes"):
        codec.run([Segment((10, 1), (0, 10), [Source(out, raw=True)], payload=np.zeros(1, np.uint8))])
    with pytest.raises(InvalidArgumentError, match="no instruction set 'sse'"):
        _core.force_isa("sse")
