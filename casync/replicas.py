"""Whether the replicas of a model are still one: checksums of every rank's parameters, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["difference"]

_REMEDY = (
    "Ranks must start alike, with broadcast_parameters(model.state_dict(), root_rank=0) and "
    "broadcast_optimizer_state(optimizer, root_rank=0), and nothing but the optimizer's step may change parameters. "
    "After a join() they must be given what the rank has that it returned: it alone has made every step"
)


def difference(checksums: Mapping[int, Mapping[str, int]]) -> str | None:
    """What to say about ranks whose parameters differ; None if none do.

    Args:
        checksums: for each rank, one for each of its parameters, by name. The lowest rank's count as right.
    """
    right, *others = sorted(checksums)
    names = list(dict.fromkeys(name for rank in (right, *others) for name in checksums[rank]))
    differing = {
        name: [rank for rank in others if checksums[rank].get(name) != checksums[right].get(name)] for name in names
    }
    differing = {name: ranks for name, ranks in differing.items() if ranks}
    if not differing:
        return None
    first, ranks = next(iter(differing.items()))
    what = f"parameter {first} of {_listed(ranks)} is not what it is on rank {right}"
    having = [rank for rank in (right, *others) if first in checksums[rank]]
    if len(having) < len(checksums):
        lacking = [rank for rank in (right, *others) if rank not in having]
        what = (
            f"{_listed(having)} {_have(having)} a parameter {first}, and {_listed(lacking)} {_have(lacking)} none of "
            "that name"
        )
    more = f", and {len(differing) - 1} more of {len(names)} parameters differ" if len(differing) > 1 else ""
    return f"{what}{more}. {_REMEDY}"


def _listed(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
