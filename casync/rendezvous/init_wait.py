"""Waiting in init() for the other ranks, which MPI does without an end and without a word.

Who waits there can neither raise nor learn who is missing. Under casyncrun it is told who waits for whom, and warns and
ends the job with the missing rank's name (`casync.launcher.arrivals`). Without it each rank does so for itself, with
what it knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence

from casync.config.settings import Config
from casync.rendezvous import launcher_pipe as report

__all__ = ["waiting"]

_LOG = logging.getLogger("casync")


@contextlib.contextmanager
def waiting(key: str, peers: Sequence[int] | None, config: Config, until: str) -> Iterator[None]:
    """A context for a wait that ends when `peers`, ranks as mpirun counts them, have come; None: all ranks.

    These ranks share `key`, which is used once. `until` says, for a warning, what this rank waits for. The process ends
    where that takes longer than `config.timeout_s`.
    """
    if report.is_heard():
        report.enters(key, peers, config.stall_warning_s, config.timeout_s)
        yield
        report.met(key)
        return
    timers = [
        threading.Timer(config.stall_warning_s, _warn, (config.stall_warning_s, until)),
        threading.Timer(config.timeout_s, _end, (config.timeout_s, until)),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


def _warn(seconds: float, until: str) -> None:
    _LOG.warning("init() has waited %g s: %s. casyncrun would say who is missing", seconds, until)


def _end(seconds: float, until: str) -> None:
    """MPI gives no way to raise from where this rank waits."""
    text = "init() has waited %g s (CASYNC_TIMEOUT_SECONDS): %s. This process ends. casyncrun would say who is missing"
    _LOG.critical(text, seconds, until)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(1)
