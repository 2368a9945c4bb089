"""CaSync for JAX's arrays on the host.

    import casync.jax as hvd

    hvd.init()
    mean = hvd.allreduce(jax.numpy.arange(10.0) * hvd.rank())
    gradients = jax.tree.unflatten(tree, hvd.grouped_allreduce(jax.tree.leaves(gradients), compression="onebit"))

Start it with `casyncrun -np 4 python program.py`; a plain `python program.py` is a world of one. Operations are eager:
what `jax.jit`, `jax.grad` or `jax.vmap` traces cannot contain one. Arrays never change, so nothing works in place.
"""

from __future__ import annotations

from casync.collectives import exports
from casync.collectives.exports import *

from . import ops
from .ops import *

__all__ = [*exports.__all__, *ops.__all__]
