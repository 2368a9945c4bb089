"""What the core says to the log: each message at its level, with its fields; a callback that raises harms nothing."""

import ctypes
import logging
import sys

import casync.torch as hvd
import pytest
import torch

from casync import _core
from casync._constants import LOG_LEVELS
from casync.config.settings import Config
from casync.observe.logs import report_logger
from casync.tensors.signature import OpKind, Sum


@pytest.fixture(autouse=True)
def level():
    """A test may set the logger's."""
    logger = logging.getLogger("casync")
    before = logger.level
    yield
    logger.setLevel(before)


def one_step(**settings):
    hvd.init(**settings)
    hvd.allreduce(torch.ones(10_000), name="w", compression="onebit")
    hvd.shutdown()


@pytest.mark.parametrize("settings", [{"log_level": "INFO"}, {"log_level": "DEBUG"}, {"explain": True}])
def test_plans_are_info(caplog, settings):
    one_step(**settings)
    (plan,) = [record for record in caplog.records if record.casync["event"] == "plan"]
    assert plan.levelno == logging.INFO
    assert plan.getMessage().startswith("allreduce.w (10000,) float32: ")
    assert plan.casync["tensor"] == "allreduce.w"
    assert plan.casync["topology"] == "direct"
    assert plan.casync["predicted_s"] == 0.0


@pytest.mark.parametrize(
    "settings",
    [{}, {"log_level": "WARNING"}, {"log_level": "ERROR", "explain": True}],
    ids=["none", "warning", "error"],
)
def test_they_are_not_shown_above_that(caplog, settings):
    one_step(**settings)
    assert caplog.records == []


@pytest.mark.parametrize(("own", "is_shown"), [(logging.NOTSET, True), (logging.INFO, True), (logging.ERROR, False)])
def test_a_report_that_was_asked_for_is_shown(own, is_shown):
    logging.getLogger("casync").setLevel(own)
    logger = logging.getLogger("casync.asked")
    logger.setLevel(logging.NOTSET)
    assert report_logger("asked") is logger and logger.isEnabledFor(logging.INFO) == is_shown


def spoilt():
    values = torch.ones(10_000)
    values[7] = float("nan")
    hvd.allreduce(values, name="w")


def test_what_is_not_finite_is_a_warning(caplog):
    hvd.init(log_level="WARNING")
    hvd.allreduce(torch.ones(10_000), name="w")
    spoilt()
    hvd.shutdown()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.casync == {"event": "nonfinite", "tensor": "allreduce.w", "op": "allreduce", "step": 2, "ranks": [0]}


def test_an_error_level_hides_warnings(caplog):
    hvd.init(log_level="ERROR")
    spoilt()
    hvd.shutdown()
    assert caplog.records == []


def test_a_callback_that_raises_is_reported_and_harms_nothing(monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(what.exc_value))

    def log(level, text, fields):
        raise LookupError(f"{LOG_LEVELS[level]} {fields['event']} {fields['tensor']}")

    options = Config().core_options(0, 1) | {"log_level": LOG_LEVELS.index("INFO")}
    session = _core.Session(None, options, log)
    memory = (ctypes.c_float * 4)(1, 2, float("nan"), 4)
    address = ctypes.addressof(memory)
    registration = session.define("w", kind=OpKind.ALLREDUCE, dtype=0, op=Sum, rows=4, cols=1)
    for _ in range(2):
        session.synchronize(session.submit(registration, address, address, 0, False))
    session.shutdown()
    assert [str(error) for error in raised] == ["INFO plan w", "WARNING nonfinite w", "WARNING nonfinite w"]
    assert list(memory)[:2] == [1, 2]
