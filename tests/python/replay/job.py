"""One rank of a job whose events are logged: several steps of named gradients, by several codecs and
topologies, and other operations."""

from __future__ import annotations

import casync.numpy as hvd
import numpy as np

STEPS = 6
CODECS = ("none", "onebit", "terngrad(bits=2)", "auto")
TOPOLOGIES = ("ps", "ring", "auto")
# One element; what is sent at once; a head's size; several partitions.
SIZES = (1, 1_000, 20_000, 700_000)


def main() -> None:
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    gradients = {
        f"{codec}.{topology}.{size}": (random.standard_normal(size, np.float32), codec, topology)
        for codec in CODECS
        for topology in TOPOLOGIES
        for size in SIZES
    }
    for _ in range(STEPS):
        handles = [
            hvd.allreduce_async(tensor, name=name, compression=codec, topology=topology)
            for name, (tensor, codec, topology) in gradients.items()
        ]
        handles += [
            hvd.reducescatter_async(tensor.reshape(-1, 100), name=name, compression=codec)
            for name, (tensor, codec, topology) in gradients.items()
            if topology == "ps" and tensor.size > 1
        ]
        exchange = hvd.alltoall_async(
            random.standard_normal((100, 7), np.float32), splits=[0, 1, 40, 20], name="exchange"
        )
        for handle in handles:
            assert np.isfinite(hvd.synchronize(handle)).all()
        assert hvd.synchronize(exchange)[1].tolist() == [[0, 1, 40, 20][hvd.rank()]] * hvd.size()
    # Rank 0 leaves early: others go on with what it knows and with what it does not.
    for _ in range(2 if hvd.rank() else 0):
        for name, (tensor, codec, topology) in [*gradients.items()][::5]:
            hvd.allreduce(tensor, name=name, compression=codec, topology=topology)
        hvd.allreduce(np.ones(3_000, np.float32), name="new")
    assert hvd.join() > 0
    hvd.shutdown()


if __name__ == "__main__":
    main()
