"""Modules that programs and tests written for Horovod import by its own paths."""

import os
import threading

import pytest

from casync.common.util import _cache, env, extension_available, gloo_built, mpi_built
from casync.runner.util.threads import in_thread


def test_env_sets_and_restores(monkeypatch):
    monkeypatch.setenv("CASYNC_TEST_KEPT", "before")
    monkeypatch.delenv("CASYNC_TEST_NEW", raising=False)
    with pytest.raises(KeyError), env(CASYNC_TEST_KEPT="inside", CASYNC_TEST_NEW="1", CASYNC_TEST_NONE=None):
        assert os.environ["CASYNC_TEST_KEPT"] == "inside" and os.environ["CASYNC_TEST_NEW"] == "1"
        assert "CASYNC_TEST_NONE" not in os.environ
        raise KeyError
    assert os.environ["CASYNC_TEST_KEPT"] == "before" and "CASYNC_TEST_NEW" not in os.environ


def test_env_bears_a_variable_that_the_block_removed(monkeypatch):
    monkeypatch.delenv("CASYNC_TEST_NEW", raising=False)
    with env(CASYNC_TEST_NEW="1"):
        del os.environ["CASYNC_TEST_NEW"]
    assert "CASYNC_TEST_NEW" not in os.environ


def test_what_is_built():
    import casync.torch as hvd

    assert extension_available("torch") and not extension_available("no_such_framework")
    assert mpi_built() == hvd.mpi_built() and gloo_built() == hvd.gloo_built()


def test_cache_computes_once():
    calls = []
    square = _cache(lambda x: calls.append(x) or x * x)
    assert [square(3), square(3), square(4)] == [9, 9, 16] and calls == [3, 4]


def test_in_thread_runs_in_another_thread():
    seen = []
    thread = in_thread(lambda *args: seen.append((threading.get_ident(), args)), (1, 2), name="helper")
    thread.join(10)
    assert thread.daemon and thread.name == "helper"
    assert seen[0][0] != threading.get_ident() and seen[0][1] == (1, 2)


def test_in_thread_refuses_an_argument_that_is_not_a_tuple():
    with pytest.raises(ValueError, match="tuple"):
        in_thread(print, [1])


@pytest.mark.parametrize("silent", [False, True])
def test_in_thread_silent(monkeypatch, silent):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def fail():
        raise OSError("on purpose")

    in_thread(fail, silent=silent).join(10)
    assert [type(one.exc_value) for one in seen] == ([] if silent else [OSError])
