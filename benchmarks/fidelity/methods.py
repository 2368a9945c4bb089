"""The ways to train that are compared, by the name that the tables have."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BASELINE", "METHODS", "Method"]


@dataclass(frozen=True)
class Method:
    """Gradients in every step (`every` is 0), or rounds of parameters."""

    codec: str = "none"
    every: int = 0
    fragments: int = 1
    delay: int = 0
    nesterov: bool = True
    """DiLoCo's outer optimizer; False averages, as local SGD does."""


BASELINE = "every step, bf16"
METHODS = {
    BASELINE: Method("bf16"),
    "LocalSGD 8": Method(every=8, nesterov=False),
    "DiLoCo 32": Method(every=32),
    "DiLoCo 128": Method(every=128),
    "DiLoCo 32, terngrad(bits=8)": Method("terngrad(bits=8)", every=32),
    "DiLoCo 32, onebit": Method("onebit", every=32),
    "DiLoCo 32, powersgd(rank=4)": Method("powersgd(rank=4)", every=32),
    "DiLoCo 32, streaming": Method(every=32, fragments=4, delay=8),
    "DiLoCo 32, streaming, onebit": Method("onebit", every=32, fragments=4, delay=8),
}
