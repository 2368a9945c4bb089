"""join at the end of a training loop."""

import casync.torch as hvd
import torch


def test_a_training_loop_of_uneven_length(rank, size):
    """Rank r has 3 + r batches. A gradient that a rank does not have counts as zero."""
    weight = torch.nn.Parameter(torch.zeros(5000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    expected = 0.0
    for batch in range(3 + rank):
        optimizer.zero_grad()
        (weight * (rank + 1.0)).sum().backward()
        optimizer.step()
        expected -= sum(r + 1.0 for r in range(size) if batch < 3 + r) / size
        torch.testing.assert_close(weight.detach(), torch.full((5000,), expected))
    last = hvd.join()
    assert last == size - 1
    hvd.broadcast_parameters({"weight": weight.detach()}, last)
    everyone = hvd.allgather(weight.detach()[None])
    assert all(torch.equal(one, everyone[0]) for one in everyone)
