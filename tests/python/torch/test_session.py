"""Where the world comes from, what the settings are, and how a program's end reaches the other ranks."""

import dataclasses
import gc
import os
import subprocess
import sys
import weakref

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync.config import horovod as horovod_variables
from casync.config.settings import Config
from casync.errors import InvalidArgumentError
from casync.observe.call_site import call_site
from casync.session.session import Session
from casync.transport.world import World

# --- the world -------------------------------------------------------------------------------------------------------


def test_ranks_of_uneven_hosts():
    """Hosts a, b, a, c, a: local ranks count within a host, cross ranks among equal local ranks."""
    worlds = [World.of(rank, "abaca") for rank in range(5)]
    assert worlds[0].host_of == (0, 1, 0, 2, 0)
    assert [w.local_rank for w in worlds] == [0, 0, 1, 0, 2]
    assert [w.local_size for w in worlds] == [3, 1, 3, 1, 3]
    assert [w.cross_rank for w in worlds] == [0, 1, 0, 2, 0]
    assert [w.cross_size for w in worlds] == [3, 3, 1, 3, 1]
    assert not worlds[0].is_homogeneous and World.of(0, "aabb").is_homogeneous


# --- settings --------------------------------------------------------------------------------------------------------


def test_an_instruction_set_that_is_not_known_is_refused_by_init():
    program = "import casync.torch as hvd; hvd.init()"
    environ = {**os.environ, "CASYNC_ISA": "sse9"}
    said = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "InvalidArgumentError: CASYNC_ISA=sse9 is not known; use baseline, avx2 or avx512" in said.stderr


def test_arguments_win_over_the_environment_over_horovods_names():
    environ = {"CASYNC_MIN_NUMEL": "10", "HOROVOD_STALL_CHECK_TIME_SECONDS": "7", "CASYNC_PLAN": "explain"}
    assert Config.from_environment({"CASYNC_REPLAN": "1"}).core_options(0, 1)["re_plan"] is True
    config = Config.from_environment(environ)
    assert (config.min_numel, config.stall_warning_s, config.explain) == (10, 7.0, True)
    config = Config.from_environment(environ | {"CASYNC_STALL_WARNING_SECONDS": "8"}, min_numel=20, timeout_s=None)
    assert (config.min_numel, config.stall_warning_s, config.timeout_s) == (20, 8.0, 600.0)
    assert Config.from_environment({"CASYNC_MIN_NUMEL": ""}) == Config()


@pytest.mark.parametrize(("environ", "expected"), [
    ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7"}, Config(stall_warning_s=7.0)),
    ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7", "HOROVOD_STALL_CHECK_DISABLE": "1"}, Config(stall_warning_s=1e9)),
    ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7", "HOROVOD_STALL_CHECK_DISABLE": "0"}, Config(stall_warning_s=7.0)),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, Config(timeout_s=90.0)),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, Config()),
    ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}, Config(topology="two_level")),
    ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "CASYNC_TOPOLOGY": "ring"}, Config(topology="ring")),
    ({"HOROVOD_LOG_LEVEL": "debug"}, Config(log_level="DEBUG")),
    ({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_RANK": "0"}, Config()),
])  # fmt: skip
def test_horovods_variables_where_they_mean_something(environ, expected):
    assert Config.from_environment(environ) == expected


def test_horovods_other_variables_have_one_line_per_reason():
    """None for what a launcher says of a rank's place, what builds Horovod, and what asks for what is so anyway."""
    environ = {
        "HOROVOD_CYCLE_TIME": "5", "HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CONTROLLER": "mpi", "HOROVOD_LOG_LEVEL": "debug",
        "HOROVOD_LOCAL_RANK": "0", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOME": "/",
    }  # fmt: skip
    assert horovod_variables.remarks(environ) == [
        "HOROVOD_CYCLE_TIME: no effect: there are no cycles: a tensor goes when it is ready",
        "HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_LOG: no effect: there are no cycles and no fusion buffer to tune; "
        "compression='auto' measures links and codecs",
    ]


def test_what_casyncrun_says_of_mpi_needs_no_remark():
    ours = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    assert horovod_variables.remarks(ours | {"CASYNC_STARTED_RANK": "0", "CASYNC_STARTED_SIZE": "2"}) == []
    assert horovod_variables.remarks({"HOROVOD_CONTROLLER": "mpi", "OMPI_COMM_WORLD_SIZE": "2"}) == []
    (line,) = horovod_variables.remarks(ours | {"OMPI_COMM_WORLD_SIZE": "2"})  # the user wants what is not so
    assert line.startswith("HOROVOD_CONTROLLER, HOROVOD_CPU_OPERATIONS: no effect")


def test_rank_0_says_once_what_has_no_effect(monkeypatch, caplog):
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "4096")
    for _ in range(3):
        hvd.init()
        hvd.shutdown()
    said = [record.getMessage() for record in caplog.records if "HOROVOD_" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("HOROVOD_CACHE_CAPACITY: no effect: what ranks agreed on")


# All that a user sets for Horovod's runtime and diagnostics.
HOROVODS = """
    FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE
    BATCH_D2D_MEMCOPIES NUM_NCCL_STREAMS DISABLE_GROUP_FUSION ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS
    DYNAMIC_PROCESS_SETS ADASUM_MPI_CHUNK_SIZE CPU_OPERATIONS CONTROLLER CCL_CACHE GLOO_IFACE GLOO_TIMEOUT_SECONDS
    MPI_THREADS_DISABLE THREAD_AFFINITY DISABLE_NVTX_RANGES TIMELINE TIMELINE_MARK_CYCLES STALL_CHECK_DISABLE
    STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS LOG_LEVEL LOG_HIDE_TIME AUTOTUNE AUTOTUNE_LOG
    AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE
""".split()


def test_every_variable_of_horovods_is_read_or_answered():
    read = {name for item in dataclasses.fields(Config) for name in item.metadata["variables"]}
    assert not read & horovod_variables.WITHOUT_EFFECT.keys()
    theirs = {name for name in read if name.startswith("HOROVOD_")} | horovod_variables.WITHOUT_EFFECT.keys()
    assert theirs == {f"HOROVOD_{name}" for name in HOROVODS}


@pytest.mark.parametrize(("variable", "value"), [
    ("CASYNC_MIN_NUMEL", "many"), ("CASYNC_MIN_NUMEL", "-1"), ("CASYNC_WORKER_THREADS", "0"),
    ("CASYNC_TIMEOUT_SECONDS", "inf"), ("CASYNC_PEER_TIMEOUT_SECONDS", "0"), ("CASYNC_PLAN", "yes"),
    ("HOROVOD_LOG_LEVEL", "loud"), ("HOROVOD_STALL_CHECK_DISABLE", "yes"), ("CASYNC_MIN_NUMEL", str(2**64)),
])  # fmt: skip
def test_a_bad_value_names_its_variable(variable, value):
    with pytest.raises(InvalidArgumentError, match=f"{variable}='{value}'"):
        Config.from_environment({variable: value})


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("min_numel", "12", "whole number of at least 0"), ("min_numel", -5, "at least 0"),
    ("worker_threads", True, "whole"),
    ("tcp_streams", 1.5, "whole number"), ("metrics_port", "abc", "from 0 to 65535"), ("metrics_port", 65536, "65535"),
    ("timeout_s", -1, "seconds above 0"), ("peer_timeout_s", float("nan"), "seconds above 0"),
    ("timeout_s", "9", "seconds"),
    ("stall_warning_s", float("inf"), "finite"), ("re_plan", "0", "True or False"), ("explain", 1, "True or False"),
    ("log_level", "loud", "TRACE, DEBUG"), ("tcp_congestion", "vegas", "auto, system"),
    ("transport", "udp", "auto, mpi"),
    ("coordinator", "x", "local, global"), ("device_lane", "foo", "auto, host"), ("topology", 3, "path"),
    ("min_numel", 2**63, "less than 2"), ("pool_bytes", 2**64, "less than 2"),
    ("partition_bytes", 2**64, "less than 2"),
    ("worker_threads", 2**31, "from 1 to 1024: .*cores"), ("worker_threads", 1025, "from 1 to 1024"),
    ("event_log", "a\0b", "without the character NUL"), ("timeline", "a\0b", "without the character NUL"),
    ("plan_file", 7, "path"), ("network_interface", 7, "string"),
])  # fmt: skip
def test_a_bad_argument_is_refused_like_a_variable(name, value, allowed):
    for make in (Config, lambda **settings: Config.from_environment({}, **settings), hvd.init):
        with pytest.raises(InvalidArgumentError, match=allowed) as refused:
            make(**{name: value})
        assert str(refused.value).startswith(f"{name}={value!r}: ")
    assert not hvd.is_initialized()


@pytest.mark.parametrize("variable", ["HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_HIERARCHICAL_ALLREDUCE"])
def test_a_switch_of_horovods_says_what_is_allowed(variable):
    with pytest.raises(InvalidArgumentError, match=f"{variable}='true': it must be a whole number: 0 is off"):
        Config.from_environment({variable: "true"})


def test_the_largest_settings_reach_the_core():
    with Session(Config(min_numel=2**63 - 1, pool_bytes=2**63 - 1, partition_bytes=2**63 - 1, worker_threads=64)):
        pass


@pytest.mark.parametrize(("topology", "said"), [
    ("nonsense", "this topology is not known; known: auto, direct"), ("", "this topology is not known"),
    ("nowhere.json", "No such file"),
])  # fmt: skip
def test_a_topology_that_is_not_there_is_refused_by_init(topology, said):
    with pytest.raises(InvalidArgumentError, match=f"^topology='{topology}': .*{said}"):
        hvd.init(topology=topology)
    assert not hvd.is_initialized()


@pytest.mark.parametrize("compression", ["onebitt", {"*": "fp17"}])
def test_a_codec_that_is_not_there_is_refused_by_init(compression):
    with pytest.raises(InvalidArgumentError, match="^compression="):
        hvd.init(compression=compression)
    assert not hvd.is_initialized()


def test_arguments_are_taken_in_the_forms_that_python_has(tmp_path):
    config = Config(log_level="info", timeout_s=np.float32(3), min_numel=np.int64(5), timeline=tmp_path / "trace")
    assert (config.log_level, config.timeout_s, config.min_numel) == ("INFO", 3.0, 5)
    assert config.timeline == str(tmp_path / "trace")
    assert Config.from_environment({"CASYNC_MIN_NUMEL": "7"}, min_numel=None).min_numel == 7


def test_every_rank_writes_its_own_event_log():
    assert Config(event_log="log").core_options(3, 4)["event_log"] == "log.3"
    assert Config(event_log="log-{rank}.bin").core_options(3, 4)["event_log"] == "log-3.bin"
    assert Config(event_log="log").core_options(0, 1)["event_log"] == "log"


# --- life ------------------------------------------------------------------------------------------------------------


def test_a_hundred_cycles():
    hook = sys.excepthook
    for cycle in range(100):
        hvd.init()
        assert hvd.allreduce(torch.full((10,), float(cycle)))[0] == cycle
        hvd.shutdown()
    assert sys.excepthook is hook and not hvd.is_initialized()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_sessions_that_close_in_any_order_are_gone(order):
    hook = sys.excepthook
    sessions = [Session(Config()) for _ in order]
    weak = [weakref.ref(session) for session in sessions]
    for which in order:
        sessions[which].shutdown()
    assert sys.excepthook is hook
    del sessions
    gc.collect()
    assert [one() for one in weak] == [None, None, None]
    hvd.shutdown()


def test_before_init():
    for call in (hvd.rank, hvd.size, hvd.barrier, lambda: hvd.allreduce(torch.ones(1)), hvd.counters):
        with pytest.raises(ValueError, match=r"CaSync has not been initialized; use hvd.init\(\)."):
            call()


def test_init_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="no setting compresion: did you mean compression"):
        hvd.init(compresion="onebit")
    with pytest.raises(ValueError, match="3, which is no ProcessSet"):
        hvd.init(process_sets=[3])
    with pytest.raises(ValueError, match="ranks of 0 to 0"):
        hvd.init(comm=[0, 1])
    assert not hvd.is_initialized()


def test_after_shutdown_a_session_refuses():
    session = Session(Config())
    session.shutdown()
    session.shutdown()
    assert not session.is_open
    registration = session._core_session.define("t", 0, 0, 1, 1, 1)
    with pytest.raises(hvd.AbortedError, match="shut down"):
        session.submit(registration, 0, 0, None)


OVER = pytest.mark.parametrize("error", [hvd.AbortedError, hvd.PeerFailureError, hvd.CorruptPayloadError])


@OVER
def test_tensors_of_an_interrupted_operation_live_until_shutdown(error, monkeypatch):
    """The network may still write a result that the program has given up."""

    class Core:
        def submit(self, *arguments):
            return 7

        def synchronize(self, handle):
            raise error("what rank 1 did")

        def shutdown(self):
            pass

    session = Session(Config())
    session._core_session.shutdown()
    monkeypatch.setattr(session, "_core_session", Core())
    tensor = torch.zeros(3)
    alive = weakref.ref(tensor)
    handle = session.submit(0, 0, 0, tensor)
    del tensor
    with pytest.raises(error):
        session.synchronize(handle)
    assert alive() is not None and not session.has_outstanding
    session.shutdown()
    assert alive() is None


def test_call_site_is_the_users_line():
    assert call_site().startswith(__file__) or call_site().split(":")[0].endswith("test_session.py")
    line = sys._getframe().f_lineno + 1
    assert call_site().endswith(f":{line}")


def test_an_uncaught_exception_is_told_once_with_its_place(monkeypatch):
    told, printed = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error[1]))
    session = Session(Config())
    monkeypatch.setattr(
        session, "_core_session", type("Core", (), {"abort": told.append, "shutdown": lambda *_: None})()
    )
    try:
        raise KeyError("label 7")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    line = sys._getframe().f_lineno - 3
    assert len(told) == 1 and told[0].startswith("rank 0: KeyError: 'label 7' at ")
    assert told[0].endswith(f"test_session.py:{line}") and len(printed) == 1
    session.shutdown()


@OVER
def test_an_error_that_all_ranks_have_is_not_told_again(error, monkeypatch):
    """It would look like this rank's fault."""
    told, printed = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *seen: printed.append(seen[1]))
    session = Session(Config())
    monkeypatch.setattr(
        session, "_core_session", type("Core", (), {"abort": told.append, "shutdown": lambda *_: None})()
    )
    sys.excepthook(error, error("what rank 3 did"), None)
    assert not told and len(printed) == 1
    session.shutdown()


def test_leaving_a_with_block_by_an_exception_aborts():
    with pytest.raises(ZeroDivisionError), Session(Config()) as session:
        handle = None
        raise ZeroDivisionError
    assert not session.is_open and handle is None
