"""Whether the replicas of a model are still one: checksums of every rank's parameters, compared."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["difference"]


def difference(names: Sequence[str], checksums: Sequence[Sequence[int]]) -> str | None:
    """What to say about ranks whose parameters differ; None if none do.

    Args:
        names: of the parameters, alike on all ranks.
        checksums: per rank, one for each name. Rank 0's count as right.
    """
    differing = {
        name: [rank for rank, row in enumerate(checksums) if row[index] != checksums[0][index]]
        for index, name in enumerate(names)
    }
    differing = {name: ranks for name, ranks in differing.items() if ranks}
    if not differing:
        return None
    first, ranks = next(iter(differing.items()))
    whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    more = f", and {len(differing) - 1} more of {len(names)} parameters differ" if len(differing) > 1 else ""
    return (
        f"parameter {first} of {whose} is not what it is on rank 0{more}. Ranks must start alike, with "
        "broadcast_parameters(model.state_dict(), root_rank=0) and broadcast_optimizer_state(optimizer, root_rank=0), "
        "and nothing but the optimizer's step may change parameters"
    )
