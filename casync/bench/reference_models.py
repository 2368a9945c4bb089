"""Parameter shapes of the models in the HiPress paper's table 6, in the order of their forward pass.

Only the shapes matter to synchronisation. Sizes agree with the table: VGG19 548.05 MiB in 38 gradients, BERT-base
420.02 MiB, LSTM 327.97 MiB in 10, Transformer 234.08 MiB in 185; ResNet50 counts every batch norm, so 161 instead of
155 for 97.49 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["MODELS", "mebibytes"]

Shape = tuple[int, ...]


def _vgg19() -> list[Shape]:
    shapes: list[Shape] = []
    channels = 3
    for width, repeats in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(repeats):
            shapes += [(width, channels, 3, 3), (width,)]
            channels = width
    for out, inputs in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        shapes += [(out, inputs), (out,)]
    return shapes


def _resnet50() -> list[Shape]:
    def conv(out: int, inputs: int, kernel: int) -> list[Shape]:
        return [(out, inputs, kernel, kernel), (out,), (out,)]  # the convolution and its batch norm

    shapes = conv(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += conv(width, inputs, 1) + conv(width, width, 3) + conv(4 * width, width, 1)
            if block == 0:
                shapes += conv(4 * width, inputs, 1)
            inputs = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def _bert_base() -> list[Shape]:
    hidden, feed = 768, 3072
    norm: list[Shape] = [(hidden,), (hidden,)]
    shapes: list[Shape] = [(30522, hidden), (512, hidden), (2, hidden), *norm]
    for _ in range(12):
        shapes += [(hidden, hidden), (hidden,)] * 4 + norm
        shapes += [(feed, hidden), (feed,), (hidden, feed), (hidden,)] + norm
    return shapes + [(hidden, hidden), (hidden,), (hidden, hidden), (hidden,), *norm, (30522,), (2, hidden), (2,)]


def _lstm() -> list[Shape]:
    words, hidden = 33278, 1500
    layer: list[Shape] = [(4 * hidden, hidden), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return [(words, hidden), *layer, *layer, (words,)]


def _transformer() -> list[Shape]:
    hidden, feed = 512, 2048
    norm: list[Shape] = [(hidden,), (hidden,)]
    attention: list[Shape] = [(hidden, hidden)] * 4
    forward: list[Shape] = [(feed, hidden), (feed,), (hidden, feed), (hidden,)]
    shapes: list[Shape] = [(33708, hidden)]
    for _ in range(6):
        shapes += attention + norm + forward + norm
    shapes += norm
    for _ in range(6):
        shapes += attention + norm + attention + norm + forward + norm
    return shapes + norm


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "vgg19": _vgg19,
    "resnet50": _resnet50,
    "bert-base": _bert_base,
    "lstm": _lstm,
    "transformer": _transformer,
}


def mebibytes(shapes: list[Shape]) -> float:
    """Size of float32 gradients of these shapes."""
    return sum(math.prod(shape) for shape in shapes) * 4 / 2**20
