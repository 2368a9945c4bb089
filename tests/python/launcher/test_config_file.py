"""--config-file: horovodrun's YAML as values of flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.launcher.options import UsageError, parse

ALL = """
controller: gloo
params: {fusion_threshold_mb: 32, cycle_time_ms: 10, cache_capacity: 2048, hierarchical_allreduce: true}
autotune: {enabled: true, log_file: log.txt, warmup_samples: 5, gaussian_process_noise: 0.9}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: true, warning_time_seconds: 30, shutdown_time_seconds: 90}
library_options: {mpi_threads_disable: true, mpi_args: --mca a b, num_nccl_streams: 2, thread_affinity: 1}
logging: {level: info, hide_timestamp: true}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_all_sections(file: Path) -> None:
    file.write_text(ALL)
    options = parse(["-np", "2", "--config-file", str(file), "a"])
    assert set(options.exports) == {
        "CASYNC_TOPOLOGY=two_level",
        "CASYNC_TIMELINE=t.json",
        "CASYNC_TIMELINE_MARK_CYCLES=1",
        "CASYNC_STALL_WARNING_SECONDS=30.0",
        "CASYNC_TIMEOUT_SECONDS=90.0",
        "CASYNC_LOG_LEVEL=INFO",
        "CASYNC_TRANSPORT=tcp",
    }
    assert options.mpi_args == ("--mca", "a", "b")


def test_flags_after_the_file_win_and_flags_before_it_lose(file: Path) -> None:
    file.write_text("stall_check: {warning_time_seconds: 30}")
    given = ["--config-file", str(file)]
    flag = ["--stall-check-warning-time-seconds", "7"]
    assert parse(["-np", "2", *given, *flag, "a"]).exports == ("CASYNC_STALL_WARNING_SECONDS=7.0",)
    assert parse(["-np", "2", *flag, *given, "a"]).exports == ("CASYNC_STALL_WARNING_SECONDS=30.0",)


def test_what_is_off_is_not_given(file: Path) -> None:
    file.write_text(
        "stall_check: {enabled: false}\nlogging: {with_timestamp: false}\ntimeline:\nparams: {cycle_time_ms: }\n"
    )
    options = parse(["-np", "2", "--config-file", str(file), "a"])
    assert options.exports == ("CASYNC_STALL_WARNING_SECONDS=1000000000.0",)
    assert options.remarks == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params: {fusion: 1}", "no setting params.fusion: params has hierarchical_allreduce, .*fusion_threshold_mb"),
        ("parms: {}\nprams: {x: 1}", "no setting prams.x: the sections are .*params"),
        ("params: {cycle_time_ms: soon}", "params.cycle_time_ms is 'soon', which --cycle-time-ms does not take"),
        ("params: {hierarchical_allreduce: 1}", "is 1, not true or false"),
        ("logging: {level: loud}", "is 'loud', not one of TRACE"),
        ("params: [1]", "section 'params' is .*, not a mapping"),
        ("controller: smoke", "no setting controller.smoke: controller has mpi, gloo, jsrun"),
        ("a: [", "it is not YAML: .*line 1"),
        ("elastic: {min_num_proc: 2}", "--min-np is not available"),
    ],
)
def test_a_file_that_cannot_be_meant_says_why(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        parse(["-np", "2", "--config-file", str(file), "a"])


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="--config-file /no/such: No such file"):
        parse(["-np", "2", "--config-file", "/no/such", "a"])
