"""The ways to train that are compared, by the name that the tables have."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["BASELINE", "BASELINES", "GROUPS", "METHODS", "OPTIMIZERS", "Method", "baseline_of"]


@dataclass(frozen=True)
class Method:
    """Gradients in every step (`every` is 0), or rounds of parameters."""

    codec: str = "none"
    every: int = 0
    fragments: int = 1
    delay: int = 0
    outer: tuple[float, float] | None = (0.7, 0.9)
    """The learning rate and the Nesterov momentum of DiLoCo's outer optimizer; None averages, as local SGD does."""
    warmup: int = 0
    """Steps at the begin in which every gradient is sent uncompressed."""
    lr: float = 1.0
    """The learning rate, by the task's own for this optimizer."""
    optimizer: str = "AdamW"
    """One of `OPTIMIZERS`."""
    clip: float = 1.0
    """The largest norm of a gradient that steps, by the task's own."""
    hook: str = ""
    """One of PyTorch's hooks of DDP (`benchmarks.pytorch_hooks`), which takes the codec's place."""


BASELINE = "every step, bf16"
ROUNDS = {
    "LocalSGD 8": Method(every=8, outer=None),
    "DiLoCo 32": Method(every=32),
    "DiLoCo 32 after 160 steps": Method(every=32, warmup=160),
    "DiLoCo 128": Method(every=128),
    "DiLoCo 32, terngrad(bits=8)": Method("terngrad(bits=8)", every=32),
    "DiLoCo 32, onebit": Method("onebit", every=32),
    "LocalSGD 32": Method(every=32, outer=None),
    "LocalSGD 32, onebit": Method("onebit", every=32, outer=None),
    "DiLoCo 32, powersgd(rank=4)": Method("powersgd(rank=4, start_step=0)", every=32),
    "LocalSGD 32, powersgd(rank=4)": Method("powersgd(rank=4, start_step=0)", every=32, outer=None),
    "DiLoCo 32, sparseloco": Method("sparseloco(feedback_decay=0.95)", every=32, outer=(1.0, 0.0)),
    "DiLoCo 32, streaming": Method(every=32, fragments=4, delay=8),
    "DiLoCo 32, streaming, onebit": Method("onebit", every=32, fragments=4, delay=8),
}
"""Parameters that are averaged every few steps."""
CODECS = {
    f"every step, {codec}": Method(codec)
    for codec in (
        "fp16",
        "int8",
        "fp8",
        "qsgd(bits=8)",
        "minmax_uint8",
        "int4",
        "rotated",
        "powersgd(rank=4, start_step=100)",
        "onebit",
        "efsignsgd",
        "topk",
        "topkc(bits=2)",
        "thc",
        "topkc(bits=0.5, chunk=128)",
        "randomk",
        "ternary",
        "sparseloco",
        "terngrad(bits=2)",
        "threelc",
        "graddrop",
        "adacomp",
        "tbq",
    )
} | {
    "DDP, fp16_compress_hook": Method(hook="fp16_compress_hook"),
    "DDP, powerSGD_hook of rank 4 after 100 steps": Method(hook="powerSGD_hook", warmup=100),
}
"""Gradients of every step. Beside ours are PyTorch's hooks of DDP, and the last of ours are expected to lose."""
RATES = {
    f"{name}, learning rate {factor}": replace(method, lr=factor)
    for name, method in ((BASELINE, Method("bf16")), ("DiLoCo 32", ROUNDS["DiLoCo 32"]))
    for factor in (0.5, 2.0)
}
"""On one seed, by which the tasks' learning rates were chosen: by the task's own."""
OPTIMIZERS = ("AdamW", "SGD", "momentum", "Muon")
"""`momentum` is SGD with 0.9 of it. `Muon` is for matrices, with AdamW for the rest."""
BASELINES = {BASELINE: Method("bf16")} | {
    f"{optimizer}, bf16": Method("bf16", optimizer=optimizer) for optimizer in OPTIMIZERS[1:]
}
"""16 bits in every step, with each optimizer: what other ways with it are compared with."""
BY_OPTIMIZER = {
    f"{optimizer}, {codec}": Method(codec, optimizer=optimizer)
    for optimizer in OPTIMIZERS
    for codec in (
        "int8",
        "int4",
        "onebit",
        "efsignsgd",
        "topk(ratio=0.01)",
        "thc",
        "powersgd(rank=4, start_step=20)",
        "dgc(ratio=0.01, warmup_steps=20)",
    )
    if not codec.startswith("dgc") or optimizer in ("SGD", "momentum")
}
"""Gradients of every step, each codec with each optimizer. `dgc` is refused with optimizers that are not SGD."""
COVAP = {
    f"{optimizer}, covap(bf16, interval={interval})": Method(
        f"covap(bf16, interval={interval})", optimizer=optimizer, clip=interval**0.5
    )
    for optimizer in ("AdamW", "momentum", "SGD")
    for interval in (2, 4, 8)
}
"""Each value in one of several steps. The norm of a gradient may be as much larger as docs/covap.md says."""
GROUPS = {"rounds": ROUNDS, "codecs": CODECS, "rates": RATES, "optimizers": BY_OPTIMIZER, "covap": COVAP}
METHODS = BASELINES | ROUNDS | CODECS | RATES | BY_OPTIMIZER | COVAP


def baseline_of(method: str) -> str:
    """The way that one is compared with: 16 bits in every step, with the same optimizer."""
    optimizer = METHODS[method].optimizer
    return BASELINE if optimizer == "AdamW" else f"{optimizer}, bf16"
