"""Every flag of horovodrun is accepted, does something, says why it does not, or is refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from casync.config.settings import Config
from casync.launcher.flags import FLAGS, Nothing, Own, Refused, Variable
from casync.launcher.options import UsageError, build_parser, parse

# horovodrun's flags as its users write them, with a value where one belongs.
HOROVODRUN = """
    --num-proc=2 --disable-cache --start-timeout=5 --network-interfaces=a,b --network-interface=a --output-filename=d
    --verbose --ssh-port=22 --ssh-identity-file=k --fusion-threshold-mb=0 --cycle-time-ms=1 --cache-capacity=1024
    --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather
    --torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file=f --autotune-warmup-samples=3
    --autotune-steps-per-sample=10 --autotune-bayes-opt-max-samples=20 --autotune-gaussian-process-noise=0.8
    --timeline-filename=f --timeline-mark-cycles --no-timeline-mark-cycles --stall-check --no-stall-check
    --stall-check-warning-time-seconds=60 --stall-check-shutdown-time-seconds=0 --mpi-threads-disable
    --no-mpi-threads-disable --mpi-args=a --tcp --binding-args=a --num-nccl-streams=1 --thread-affinity=0
    --gloo-timeout-seconds=30 --log-level=INFO --log-with-timestamp --log-without-timestamp --log-hide-timestamp
    --no-log-hide-timestamp --prefix-output-with-timestamp -prefix-timestamp --gloo --mpi --jsrun --hosts=h:2
""".split()
ELASTIC = """
    --min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
    --host-discovery-script
""".split()


@pytest.mark.parametrize("flag", HOROVODRUN)
def test_a_flag_of_horovodrun_is_accepted(flag: str) -> None:
    assert parse(["-np", "2", flag, "a"]).command == ("a",)


@pytest.mark.parametrize("line", [*([flag, "2"] for flag in ELASTIC), ["--blacklist-cooldown-range", "1", "2"]])
def test_an_elastic_flag_is_refused_by_name(line: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{line[0][:5]}.* is not available: jobs have a fixed number of ranks"):
        parse(["-np", "2", *line, "a"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--stall-check-warning-time-seconds", "30"], {"CASYNC_STALL_WARNING_SECONDS=30.0"}),
        (["--stall-check-shutdown-time-seconds", "90"], {"CASYNC_TIMEOUT_SECONDS=90.0"}),
        (["--stall-check-shutdown-time-seconds", "0"], set()),
        (
            ["--no-stall-check", "--stall-check-warning-time-seconds", "30"],
            {"CASYNC_STALL_WARNING_SECONDS=1000000000.0"},
        ),
        (["--hierarchical-allreduce"], {"CASYNC_TOPOLOGY=two_level"}),
        (["--hierarchical-allreduce", "--no-hierarchical-allreduce"], set()),
        (["--log-level", "debug"], {"CASYNC_LOG_LEVEL=DEBUG"}),
        (["--timeline-filename", "t.json"], {"CASYNC_TIMELINE=t.json"}),
        (["--timeline-mark-cycles"], {"CASYNC_TIMELINE_MARK_CYCLES=1"}),
        (["--no-stall-check", "-x", "A=1"], {"CASYNC_STALL_WARNING_SECONDS=1000000000.0", "A=1"}),
    ],
)
def test_some_flags_become_variables_of_the_ranks(line: list[str], expected: set[str]) -> None:
    assert set(parse(["-np", "2", *line, "a"]).exports) == expected


def test_what_a_flag_sets_is_what_a_session_reads() -> None:
    for item in (["--no-stall-check"], ["--stall-check-shutdown-time-seconds", "9"], ["--log-level", "error"]):
        exports = dict(text.split("=", 1) for text in parse(["-np", "2", *item, "a"]).exports)
        assert Config.from_environment(exports) != Config()
    read = {name for item in dataclasses.fields(Config) for name in item.metadata["variables"]}
    assert {flag.effect.name for flag in FLAGS if isinstance(flag.effect, Variable)} <= read


def test_flags_without_effect_say_why_in_one_line_per_reason() -> None:
    remarks = parse(["-np", "2", "--cycle-time-ms", "5", "--tcp", "--num-nccl-streams", "2", "a"]).remarks
    assert set(remarks) == {
        "--num-nccl-streams: no effect: there is one stream for NCCL",
        "--cycle-time-ms: no effect: there are no cycles: a tensor goes when it is ready",
        "--tcp: no effect: between hosts there is only TCP",
    }


def test_the_table_is_sound() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    assert len({flag.dest for flag in FLAGS}) == len(FLAGS)
    settings = [flag.setting for flag in FLAGS if flag.setting]
    assert len(settings) == len(set(settings))
    for flag in FLAGS:
        assert isinstance(flag.effect, (Own, Variable)) == bool(flag.about), flag.names
        assert isinstance(flag.effect, (Own, Variable, Nothing, Refused))


def test_help_names_every_flag_and_its_effect() -> None:
    text = " ".join(build_parser().format_help().split())
    for flag in FLAGS:
        assert all(name in text for name in flag.names), flag.names
