"""Handwritten digits with NumPy alone: no framework, and a gradient that CaSync averages where it lies.

casyncrun -np 4 python examples/numpy/digits.py --compression onebit
"""

import argparse

import casync.numpy as hvd
import numpy as np
from sklearn.datasets import load_digits


def features_of(images: np.ndarray) -> np.ndarray:
    """1,024 cosines of each image (Rahimi and Recht 2007), on which a linear model can tell digits apart."""
    rng = np.random.default_rng(1)
    directions, phases = rng.standard_normal((64, 1024)) * 0.5, rng.uniform(0, 2 * np.pi, 1024)
    return np.cos(images.reshape(-1, 64) @ directions + phases).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", default="none", help="a codec, as onebit")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    hvd.init()

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    features, labels = features_of(digits.images[order] / 16.0), digits.target[order]
    mine = slice(360 + hvd.rank(), None, hvd.size())  # the first 360 are to test on
    own_features, own_labels = features[mine], labels[mine]

    weights = np.zeros((1024, 10), np.float32)
    rng = np.random.default_rng(hvd.rank())
    steps = 1437 // hvd.size() // 16  # the same number on all ranks
    for epoch in range(options.epochs):
        for batch in np.array_split(rng.permutation(len(own_labels))[: steps * 16], steps):
            scores = own_features[batch] @ weights
            chances = np.exp(scores - scores.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            chances[np.arange(len(batch)), own_labels[batch]] -= 1
            gradient = own_features[batch].T @ chances / len(batch)
            hvd.allreduce_(gradient, name="gradient", compression=options.compression)
            weights -= 0.05 * gradient
        accuracy = (features[:360] @ weights).argmax(1) == labels[:360]
        if hvd.rank() == 0:
            sent = hvd.counters()["sent_bytes"] / 2**20
            print(f"epoch {epoch + 1}: accuracy {100 * accuracy.mean():.2f} %, rank 0 sent {sent:.1f} MiB")


if __name__ == "__main__":
    main()
