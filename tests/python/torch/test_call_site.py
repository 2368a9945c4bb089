"""The line that messages name is the user's, whatever library calls CaSync for it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from casync.observe.call_site import call_site, describe_exception


def of_library(module: str, source: str, **names: Any) -> Callable[..., Any]:
    """The function `run` of a module that is called so."""
    space = {"__name__": module, **names}
    exec(compile(source, f"/lib/{module}.py", "exec"), space)  # noqa: S102
    function: Callable[..., Any] = space["run"]
    return function


LIBRARIES = [
    "lightning.pytorch.trainer", "pytorch_lightning.loops", "lightning_fabric.strategies", "accelerate.accelerator",
    "transformers.trainer", "trl.trainer", "keras.src.trainers", "ray.train.torch", "jax._src.api", "torch.autograd",
]  # fmt: skip


@pytest.mark.parametrize("module", LIBRARIES)
def test_a_library_is_not_the_user(module: str) -> None:
    inner = of_library(module, "def run(): return call_site()", call_site=call_site)
    wrapped = contextlib.nullcontext()

    class Decorated(contextlib.ContextDecorator):
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    outer = of_library(module, "def run(act): return act()")
    with wrapped:
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        found = outer(Decorated()(inner))
    assert found.endswith(f"test_call_site.py:{line}")


@pytest.mark.parametrize("module", LIBRARIES)
def test_what_a_library_raises_is_at_the_users_line(module: str) -> None:
    failing = of_library(module, "def run(): raise ValueError('no')")
    try:
        failing()
    except ValueError:
        kind, value, trace = sys.exc_info()
        assert kind is not None and value is not None
        text = describe_exception(kind, value, trace)
    assert text.startswith("ValueError: no at ") and "test_call_site.py:" in text


def test_what_is_no_letter_in_an_error_or_a_path_is_told_as_its_escape() -> None:
    error = ValueError("\ud800")
    text = describe_exception(type(error), error, None)
    assert text == r"ValueError: \ud800"
    space: dict[str, Any] = {"__name__": "__main__", "call_site": call_site}
    exec(compile("where = call_site()", "/home/\udcff/train.py", "exec"), space)  # noqa: S102
    assert space["where"] == r"/home/\udcff/train.py:1"
