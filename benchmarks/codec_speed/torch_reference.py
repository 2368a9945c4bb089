"""The library's algorithms as a user of torch would write them, without error handling: a line of torch for a line of
the paper, whole tensors where the algorithm lets them, else its units one after the other.

`encode` takes a gradient, keeps residual and state, and returns the payload; `decode` makes a tensor of one, and
`merge` adds one to a tensor. Payloads hold what ours hold, but for the bytes of headers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["REFERENCES", "Reference"]

UNIT = 1 << 20
GROUP = 4096


class Reference:
    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.size = shape[0] * shape[1]

    def encode(self, gradient: Tensor) -> Any:
        raise NotImplementedError

    def decode(self, payload: Any) -> Tensor:
        raise NotImplementedError

    def merge(self, payload: Any, into: Tensor) -> None:
        into += self.decode(payload)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Neighbours in a byte, the first one lowest."""
    columns = codes.view(-1, 8 // bits).unbind(1)
    packed = columns[0].clone()
    for place, column in enumerate(columns[1:], start=1):
        packed |= column << (bits * place)
    return packed


def unpack(packed: Tensor, bits: int) -> Tensor:
    places = range(0, 8, bits)
    return torch.stack([packed >> place & ((1 << bits) - 1) for place in places], 1).view(-1)


class OneBit(Reference):
    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.residual = torch.zeros(self.size)

    def encode(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = (gradient + self.residual).view(self.shape)
        bits = x >= 0
        count = bits.sum(1, keepdim=True)
        sums = x.clamp(min=0).sum(1, keepdim=True), x.clamp(max=0).sum(1, keepdim=True)
        positive = sums[0] / count.clamp(min=1)
        negative = sums[1] / (self.shape[1] - count).clamp(min=1)
        self.residual = (x - torch.where(bits, positive, negative)).view(-1)
        return positive, negative, pack(bits.view(torch.uint8), 1)

    def decode(self, payload: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        positive, negative, bits = payload
        return torch.where(unpack(bits, 1).view(self.shape).bool(), positive, negative).view(-1)


class TernGrad(Reference):
    def encode(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = gradient.view(-1, GROUP)
        low, high = x.aminmax(dim=1, keepdim=True)
        gap = (high - low) / 3
        levels = ((x - low) / gap + torch.rand_like(x)).clamp_(max=3).to(torch.uint8)
        return low, gap, pack(levels, 2)

    def decode(self, payload: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        low, gap, codes = payload
        return (low + gap * unpack(codes, 2).view(-1, GROUP)).view(-1)


class Tbq(Reference):
    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.residual = torch.zeros(self.size)
        self.tau = 0.0

    def encode(self, gradient: Tensor) -> Tensor:
        if self.tau == 0:
            self.tau = 4 * gradient.abs().mean().item()
        x = gradient + self.residual
        above, below = (x > self.tau).view(torch.int8), (x < -self.tau).view(torch.int8)
        self.residual = x - self.tau * (above - below)
        return pack(above.view(torch.uint8) | below.view(torch.uint8) << 1, 2)

    def decode(self, payload: Tensor) -> Tensor:
        codes = unpack(payload, 2)
        return self.tau * ((codes & 1).view(torch.int8) - (codes >> 1).view(torch.int8))


class Sparse(Reference):
    """A payload is, for each unit, its indices there and its values."""

    def decode(self, payload: list[tuple[Tensor, Tensor]]) -> Tensor:
        out = torch.zeros(self.size)
        self.merge(payload, out)
        return out

    def merge(self, payload: list[tuple[Tensor, Tensor]], into: Tensor) -> None:
        for unit, (index, value) in zip(into.split(UNIT), payload, strict=True):
            unit.index_add_(0, index, value)


class GradDrop(Sparse):
    drop, rate = 0.99, 0.001

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.residual = torch.zeros(self.size)

    def encode(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [self._unit(*unit) for unit in zip(gradient.split(UNIT), self.residual.split(UNIT), strict=True)]

    def _unit(self, gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x += gradient
        magnitude = x.abs()
        keep = max(1, math.ceil((1 - self.drop) * len(x)))
        sample = magnitude[:: int(min(1 / self.rate, len(x) / 1024))]
        threshold = sample.topk(int((1 - self.drop) * len(sample)) + 1).values[-1]
        index = (magnitude >= threshold).nonzero().squeeze(1)
        if len(index) > 2 * keep:
            index = magnitude.topk(keep).indices
        value = x[index]
        x[index] = 0
        return index.int(), value


class Dgc(Sparse):
    ratio, rate, momentum = 0.001, 0.01, 0.9

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.u, self.v = torch.zeros(self.size), torch.zeros(self.size)

    def encode(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        units = zip(gradient.split(UNIT), self.u.split(UNIT), self.v.split(UNIT), strict=True)
        return [self._unit(*unit) for unit in units]

    def _unit(self, gradient: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u.mul_(self.momentum).add_(gradient)
        v += u
        magnitude = v.abs()
        keep = math.ceil(self.ratio * len(v))
        sample = magnitude[:: int(1 / self.rate)]
        threshold = sample.topk(int(self.ratio * len(sample)) + 1).values[-1]
        for _ in range(10):
            index = (magnitude >= threshold).nonzero().squeeze(1)
            if len(index) >= 0.8 * keep:
                break
            threshold *= 0.8
        if len(index) > keep:
            index = index[magnitude[index].topk(keep).indices]
        value = v[index]
        u[index] = 0
        v[index] = 0
        return index.int(), value


class AdaComp(Reference):
    bin = 500
    unit = UNIT // bin * bin

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.residual = torch.zeros(self.size)

    def encode(self, gradient: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        units = zip(gradient.split(self.unit), self.residual.split(self.unit), strict=True)
        return [self._unit(*unit) for unit in units]

    def _bins(self, values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, -len(values) % self.bin)).view(-1, self.bin)

    def _unit(self, gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual += gradient
        top = self._bins(residual.abs()).amax(1, keepdim=True)
        scale = top.mean()
        chosen = (self._bins((residual + gradient).abs()) >= top) & (top > 0)
        index = chosen.view(-1).nonzero().squeeze(1)
        value = residual[index]
        codes = (index % self.bin << 2 | torch.where(value < 0, 2, 1)).to(torch.int16)
        residual[index] = torch.where(value < 0, value + scale, value - scale)
        return scale, chosen.sum(1, dtype=torch.int16), codes

    def decode(self, payload: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        out = torch.zeros(self.size)
        self.merge(payload, out)
        return out

    def merge(self, payload: list[tuple[Tensor, Tensor, Tensor]], into: Tensor) -> None:
        for unit, (scale, counts, codes) in zip(into.split(self.unit), payload, strict=True):
            bins = torch.repeat_interleave(counts.int()).int()
            value = torch.where(codes & 3 == 2, -scale, scale)
            unit.index_add_(0, bins * self.bin + (codes >> 2), value)


class ThreeLC(Reference):
    weights = (81, 27, 9, 3, 1)
    zeros, longest = 121, 14

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.residual = torch.zeros(self.size)

    def encode(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [self._unit(*unit) for unit in zip(gradient.split(UNIT), self.residual.split(UNIT), strict=True)]

    def _unit(self, gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x += gradient
        scale = x.abs().max()
        levels = (x / scale).round_()
        x -= scale * levels
        digits = torch.nn.functional.pad((levels + 1).to(torch.uint8), (0, -len(x) % 5)).view(-1, 5).unbind(1)
        quintets = sum(digit * weight for digit, weight in zip(digits, self.weights, strict=True))
        assert isinstance(quintets, Tensor)
        return scale, self._runs(quintets)

    def _runs(self, quintets: Tensor) -> Tensor:
        zero = quintets == self.zeros
        place = torch.arange(len(quintets), dtype=torch.int32)
        begin = torch.where(zero, 0, place + 1).cummax(0).values
        heads = (~zero | ((place - begin) % self.longest == 0)).nonzero().squeeze(1)
        length = heads.diff(append=torch.tensor([len(quintets)]))
        return torch.where(length > 1, 241 + length, quintets[heads]).to(torch.uint8)

    def decode(self, payload: list[tuple[Tensor, Tensor]]) -> Tensor:
        out = torch.empty(self.size)
        for unit, (scale, codes) in zip(out.split(UNIT), payload, strict=True):
            run = codes >= 243
            quintets = torch.where(run, self.zeros, codes).repeat_interleave(torch.where(run, codes.int() - 241, 1))
            digits = torch.stack([quintets // weight % 3 for weight in self.weights], 1).view(-1)
            torch.mul(scale, digits[: len(unit)].view(torch.int8) - 1, out=unit)
        return out


class PowerSGD(Reference):
    """The matmuls alone: M Q, M' P as (P' M)', which is the same and takes torch a fifteenth of the time, and P Q'."""

    rank = 4

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.p, self.q = torch.randn(shape[0], self.rank), torch.randn(shape[1], self.rank)

    def encode(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        matrix = gradient.view(self.shape)
        return matrix @ self.q, (self.p.T @ matrix).T

    def decode(self, payload: tuple[Tensor, Tensor]) -> Tensor:
        p, q = payload
        return (p @ q.T).view(-1)


REFERENCES: dict[str, type[Reference]] = {
    "onebit": OneBit,
    "terngrad(bits=2)": TernGrad,
    "tbq": Tbq,
    "graddrop": GradDrop,
    "dgc(ratio=0.001)": Dgc,
    "adacomp": AdaComp,
    "threelc": ThreeLC,
    "powersgd(rank=4)": PowerSGD,
}
