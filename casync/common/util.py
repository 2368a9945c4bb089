"""Horovod's helpers under the names that its users import from `horovod.common.util`."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

from casync.session import build_info as built

__all__ = ["env", "extension_available", "gloo_built", "mpi_built"]

_cache = functools.cache


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether `casync.<ext_base_name>`, such as torch, is part of this installation and its framework can be found."""
    return all(importlib.util.find_spec(name) is not None for name in (f"casync.{ext_base_name}", ext_base_name))


def mpi_built(verbose: bool = False) -> bool:
    """Whether there is an MPI transport."""
    return built.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """False: ranks reach each other over MPI."""
    return built.gloo_built()


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """The environment variables `kwargs` for the time of a with block; one given as None is left alone."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
