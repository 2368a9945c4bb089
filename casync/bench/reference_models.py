"""Parameter shapes of the models in the papers of HiPress, ByteComp and COVAP, in the order of their forward pass.

Only the shapes matter to synchronisation. Sizes agree with HiPress's table 6: VGG19 548.05 MiB in 38 gradients,
BERT-base 420.02 MiB, BERT-large 1282.60 MiB, UGATIT 2558.75 MiB in 148, LSTM 327.97 MiB in 10, Transformer 234.08 MiB
in 185. ResNet50 counts every batch norm, so 161 instead of 155 for 97.49 MiB. Both BERTs have one gradient less than
printed. ByteComp's are VGG16 with 32 gradients, ResNet101 with 314 and GPT-2 with 148.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["MODELS", "mebibytes"]

Shape = tuple[int, ...]


def _vgg(repeats_of: Sequence[int]) -> list[Shape]:
    shapes: list[Shape] = []
    channels = 3
    for width, repeats in zip((64, 128, 256, 512, 512), repeats_of, strict=True):
        for _ in range(repeats):
            shapes += [(width, channels, 3, 3), (width,)]
            channels = width
    for out, inputs in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        shapes += [(out, inputs), (out,)]
    return shapes


def _vgg16() -> list[Shape]:
    return _vgg((2, 2, 3, 3, 3))


def _vgg19() -> list[Shape]:
    return _vgg((2, 2, 4, 4, 4))


def _resnet(blocks_of: Sequence[int]) -> list[Shape]:
    def conv(out: int, inputs: int, kernel: int) -> list[Shape]:
        return [(out, inputs, kernel, kernel), (out,), (out,)]  # the convolution and its batch norm

    shapes = conv(64, 3, 7)
    inputs = 64
    for width, blocks in zip((64, 128, 256, 512), blocks_of, strict=True):
        for block in range(blocks):
            shapes += conv(width, inputs, 1) + conv(width, width, 3) + conv(4 * width, width, 1)
            if block == 0:
                shapes += conv(4 * width, inputs, 1)
            inputs = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def _resnet50() -> list[Shape]:
    return _resnet((3, 4, 6, 3))


def _resnet101() -> list[Shape]:
    return _resnet((3, 4, 23, 3))


def _bert(hidden: int, layers: int) -> list[Shape]:
    feed = 4 * hidden
    norm: list[Shape] = [(hidden,), (hidden,)]
    shapes: list[Shape] = [(30522, hidden), (512, hidden), (2, hidden), *norm]
    for _ in range(layers):
        shapes += [(hidden, hidden), (hidden,)] * 4 + norm
        shapes += [(feed, hidden), (feed,), (hidden, feed), (hidden,)] + norm
    return shapes + [(hidden, hidden), (hidden,), (hidden, hidden), (hidden,), *norm, (30522,), (2, hidden), (2,)]


def _bert_base() -> list[Shape]:
    return _bert(768, 12)


def _bert_large() -> list[Shape]:
    return _bert(1024, 24)


def _gpt2() -> list[Shape]:
    hidden = 768
    norm: list[Shape] = [(hidden,), (hidden,)]
    attention: list[Shape] = [(hidden, 3 * hidden), (3 * hidden,), (hidden, hidden), (hidden,)]
    forward: list[Shape] = [(hidden, 4 * hidden), (4 * hidden,), (4 * hidden, hidden), (hidden,)]
    return [(50257, hidden), (1024, hidden), *(norm + attention + norm + forward) * 12, *norm]


def _ugatit() -> list[Shape]:
    """Two generators, and two discriminators of 7 layers and two of 5, for pictures of 256 x 256."""
    width = 64
    wide, side = 4 * width, 256 // 4
    convolution: Shape = (wide, wide, 3, 3)
    maps: list[Shape] = [(1, wide), (1, wide), (wide, 2 * wide, 1, 1), (wide,)]
    style: list[Shape] = [(wide, side * side * wide), (wide, wide), (wide, wide), (wide, wide)]
    generator: list[Shape] = [(width, 3, 7, 7), (2 * width, width, 3, 3), (wide, 2 * width, 3, 3)]
    generator += [convolution] * 8 + maps + style + [convolution, (wide,)] * 8
    for out, inputs in ((2 * width, wide), (width, 2 * width)):
        generator += [(out, inputs, 3, 3), (out,), (out,), (out,)]
    generator.append((3, width, 7, 7))

    def discriminator(layers: int) -> list[Shape]:
        shapes: list[Shape] = []
        inputs = 3
        for layer in range(layers):
            shapes += [(width << layer, inputs, 4, 4), (width << layer,)]
            inputs = width << layer
        return [*shapes, (1, inputs), (1, inputs), (inputs, 2 * inputs, 1, 1), (inputs,), (1, inputs, 4, 4)]

    return generator * 2 + (discriminator(6) + discriminator(4)) * 2


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
    "vgg16": _vgg16,
    "resnet101": _resnet101,
    "bert-large": _bert_large,
    "gpt2": _gpt2,
    "ugatit": _ugatit,
}


def mebibytes(shapes: list[Shape]) -> float:
    """Size of float32 gradients of these shapes."""
    return sum(math.prod(shape) for shape in shapes) * 4 / 2**20
