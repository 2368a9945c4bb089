"""What is measured, and how long it may take. Pure: no clock, no ranks, no machine.

for case in cases(["resnet50"], ["1gbit"], CODECS, memory=20e9):
    case.contenders()  # {"none": "none", "none again": "none", "fp16": "fp16", "auto": "auto", ...}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from casync.bench.reference_models import MODELS
from casync.bench.units import parse_rate

__all__ = [
    "AGAIN",
    "CODECS",
    "LINKS",
    "MODELS_AND_SMALL",
    "RANKS",
    "Case",
    "cases",
    "rounds_in",
    "share_of",
    "turns_of",
]

Shape = tuple[int, ...]

RANKS = 4
HOST = "host"
"""In place of a link's rate: all ranks on one host."""
LINKS = ("1gbit", "2.5gbit", "10gbit", HOST)
CODECS = ("onebit", "terngrad(bits=2)", "powersgd(rank=4, start_step=0)", "adacomp")
MODELS_AND_SMALL: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": MODELS["resnet50"],
    "bert-base": MODELS["bert-base"],
    "small": lambda: [(128, 128)] * 400,  # 64 KiB each
    "vgg19": MODELS["vgg19"],
}
AGAIN = "none again"
"""The label of a second contender that is `none`: how far the two are apart is what the machine's noise makes of it."""

_OF_AUTO = "onebit"  # that plain `auto` chooses from, beside 16 bits
_ONLY_OVER = {"vgg19": "1gbit"}
_ONLY_WITH = {"vgg19": (_OF_AUTO,)}
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 15  # beside the first
_MOST_TURNS = 5  # of a contender in a round
_RANK_BYTES = 0.5e9  # of a process with torch
_BESIDE = 1.4  # of what a rank keeps of gradients: pools, and what was freed
_START_S = 15.0
_STEPS, _LINK_STEPS = 8, 2  # of a contender; and uncompressed steps that take the link for as long as these
_SETTLING_STEPS, _SETTLING_LINK_STEPS = 36, 8  # of an `auto`, before
_SETTLING_S = 3.0  # of an `auto`: a session begins and ends
_CORES_BYTES_PER_S = 1.2e9  # of the gradients of all ranks
_TENSOR_S = 0.4e-3  # of a gradient of all ranks, however small


@dataclass(frozen=True)
class Case:
    """One job: a model over one kind of link, with some of the codecs."""

    model: str
    link: str
    codecs: tuple[str, ...]

    @property
    def hosts(self) -> int:
        """How many hosts the ranks are spread over."""
        return 1 if self.link == HOST else RANKS

    @property
    def gradient_bytes(self) -> int:
        """Of one rank, as float32."""
        return 4 * sum(math.prod(shape) for shape in MODELS_AND_SMALL[self.model]())

    @property
    def _cores_s(self) -> float:
        """Of a step, roughly: what all ranks' gradients ask of the processors."""
        gradients = len(MODELS_AND_SMALL[self.model]())
        return RANKS * self.gradient_bytes / _CORES_BYTES_PER_S + gradients * _TENSOR_S

    def contenders(self) -> dict[str, str]:
        """Codec specs by label, in the order of their turns."""
        labels = {"none": "none", AGAIN: "none", "fp16": "fp16", "auto": "auto"}
        for codec in self.codecs:
            labels[codec] = codec
            if codec != _OF_AUTO:
                labels[f"auto({codec})"] = automatic(codec)
        return labels

    def candidates(self, label: str) -> list[str]:
        """The labels of what `auto` or `auto(X)` chooses from."""
        codec = _OF_AUTO if label == "auto" else label.removeprefix("auto(")[:-1]
        return ["none", "fp16", *([codec] if codec in self.codecs else [])]

    def cost(self) -> float:
        """Roughly how many seconds it takes: to share out the time by."""
        link = 0.0 if self.link == HOST else 2 * (RANKS - 1) / RANKS * self.gradient_bytes / parse_rate(self.link)
        cores = self._cores_s
        contenders = self.contenders()
        autos = sum(label.startswith("auto") for label in contenders)
        turns = len(contenders) * (_LINK_STEPS * link + _STEPS * cores)
        return _START_S + turns + autos * (_SETTLING_S + _SETTLING_LINK_STEPS * link + _SETTLING_STEPS * cores)


def automatic(codec: str) -> str:
    """`auto` with the candidates `none`, `fp16` and this codec."""
    return f"auto(fp16, {codec})"


def cases(models: Sequence[str], links: Sequence[str], codecs: Sequence[str], memory: float) -> list[Case]:
    """One for each model and link. A model whose codecs' residuals do not fit into `memory` bytes together has several,
    with some of the codecs in each.
    """
    found = []
    for model in models:
        for link in links:
            if _ONLY_OVER.get(model, link) == link:
                wanted = [codec for codec in codecs if codec in _ONLY_WITH.get(model, codecs)]
                most = max(1, _codecs_that_fit(Case(model, link, ()).gradient_bytes, memory))
                parts = max(1, math.ceil(len(wanted) / most))
                found += [Case(model, link, tuple(wanted[part::parts])) for part in range(parts)]
    return found


def _codecs_that_fit(gradient_bytes: int, memory: float) -> int:
    """A rank keeps its gradients, a residual for `auto`, and two for each codec: its own and that of its `auto`."""
    per_rank = memory / RANKS - _RANK_BYTES
    return int((per_rank / _BESIDE - 2 * gradient_bytes) / (2 * gradient_bytes))


def share_of(waiting: Sequence[Case], seconds: float) -> float:
    """How much of the `seconds` that are left the first of the `waiting` cases may take."""
    return seconds * waiting[0].cost() / sum(case.cost() for case in waiting)


def rounds_in(seconds: float, round_s: float) -> int:
    """How many rounds of `round_s` seconds to measure after the first one, in `seconds`: enough for a median, and no
    more than help it.
    """
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / round_s)))


def turns_of(step_s: float, slowest_s: float) -> int:
    """How many turns a contender with such a step takes in a round, beside the slowest, which takes one. Short steps
    vary more, and cost little: so their median is of more of them.
    """
    return max(1, min(_MOST_TURNS, int(slowest_s / (2 * step_s))))
