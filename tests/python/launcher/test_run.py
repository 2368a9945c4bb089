"""casync.run: results in the order of the ranks, and the first failure where the job was started."""

from __future__ import annotations

import inspect
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import casync
from casync.errors import InvalidArgumentError, JobError, NotAvailableError
from casync.launcher import task

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

# horovod.run's parameters with their defaults.
HOROVOD = {
    "func": inspect.Parameter.empty, "args": (), "kwargs": None, "num_proc": 1, "min_num_proc": None,
    "max_num_proc": None, "slots": None, "reset_limit": None, "cooldown_range": None, "hosts": None, "hostfile": None,
    "host_discovery_script": None, "start_timeout": None, "ssh_port": None, "ssh_identity_file": None,
    "disable_cache": None, "output_filename": None, "verbose": None, "use_gloo": None, "use_mpi": None,
    "mpi_args": None, "network_interface": None, "network_interfaces": None, "executable": None, "np": None,
    "min_np": None, "max_np": None,
}  # fmt: skip


@pytest.fixture
def importable(casyncrun: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The casync under test is found by the ranks too."""
    monkeypatch.setenv("PYTHONPATH", casyncrun.environment()["PYTHONPATH"])


def test_the_parameters_are_horovods() -> None:
    assert {p.name: p.default for p in inspect.signature(casync.run).parameters.values()} == HOROVOD


def test_results_come_in_the_order_of_the_ranks(importable: None) -> None:
    def function(factor: int, plus: int = 0) -> tuple[int, str]:
        rank = int(os.environ["CASYNC_RANK"])
        time.sleep(0.1 * (2 - rank))
        return rank * factor + plus, os.environ["WORLD_SIZE"]

    assert casync.run(function, (10,), {"plus": 1}, np=3) == [(1, "3"), (11, "3"), (21, "3")]


def test_a_large_argument_and_a_large_result(importable: None) -> None:
    data = os.urandom(20 << 20)
    (back,) = casync.run(lambda given: given[::-1], (data,))
    assert back == data[::-1]


def test_a_module_of_the_caller_is_found(importable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_the_caller.py").write_text("def function(): return 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import module_of_the_caller  # type: ignore[import-not-found]

    assert casync.run(module_of_the_caller.function) == ["found"]


def test_an_exception_is_raised_where_the_job_was_started(importable: None) -> None:
    def function() -> None:
        if os.environ["CASYNC_RANK"] == "1":
            raise KeyError("bad label")

    with pytest.raises(JobError, match="rank 1 on host .* raised KeyError: 'bad label'") as caught:
        casync.run(function, np=2)
    assert isinstance(caught.value.__cause__, KeyError)
    # The file's name is cloudpickle's: 3.1.3 and later write <dynamic-code>.
    assert f"line {function.__code__.co_firstlineno + 2}, in function" in str(caught.value)
    assert "the first rank to fail: rank 1 on host" in str(caught.value)


def test_a_result_that_cannot_be_sent_is_an_exception_of_the_rank(importable: None) -> None:
    with pytest.raises(JobError, match="rank 0 on host .* raised TypeError: cannot pickle"):
        casync.run(lambda: (i for i in range(3)))


@pytest.mark.parametrize(("death", "said"), [("kill", "killed by SIGKILL"), ("exit", "exited with status 7")])
def test_a_rank_that_dies_is_named(importable: None, death: str, said: str) -> None:
    def function() -> None:
        if os.environ["CASYNC_RANK"] == "1":
            os._exit(7) if death == "exit" else os.kill(os.getpid(), 9)

    with pytest.raises(JobError, match=f"rank 1 on host \\S+ (was )?{said}"):
        casync.run(function, np=2)


def test_a_function_that_leaves_the_process_has_no_result(importable: None) -> None:
    with pytest.raises(JobError, match="rank 0 left with status 0 before its function had returned"):
        casync.run(lambda: os._exit(0))


def test_files_and_output(importable: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    casync.run(print, ("hello",), output_filename=str(tmp_path / "out"), disable_cache=True)
    assert (tmp_path / "out" / "rank.0" / "stdout").read_text() == "hello\n"
    shown = capfd.readouterr()
    assert shown.out == "[0]<stdout>: hello\n"
    assert "--disable-cache: no effect" in shown.err


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"hosts": "a:1", "hostfile": "b"},
            InvalidArgumentError,
            "^Argument hosts and hostfile only allow one provided.$",
        ),
        (
            {"use_gloo": True, "use_mpi": True},
            InvalidArgumentError,
            "^Argument use_gloo and use_mpi only allow one set",
        ),
        ({"np": 0}, InvalidArgumentError, "at least one rank"),
        ({"np": 3, "hosts": "localhost:2"}, InvalidArgumentError, "more than the 2 slots"),
        *(
            ({name: 1}, NotAvailableError, f"{name}=1.*fixed number of ranks")
            for name in ("min_num_proc", "max_num_proc", "slots", "reset_limit", "min_np", "max_np")
        ),
        ({"cooldown_range": (1, 2)}, NotAvailableError, "cooldown_range"),
        ({"host_discovery_script": "s"}, NotAvailableError, "host_discovery_script"),
        ({"executable": "/no/python"}, JobError, "cannot start /no/python"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        casync.run(print, **arguments)


def test_what_was_cut_off_is_no_result() -> None:
    import pickle

    whole = pickle.dumps((pickle.dumps(3),))
    assert task.unpack(whole) == task.Returned(3)
    assert task.unpack(whole[:-3]) is None
