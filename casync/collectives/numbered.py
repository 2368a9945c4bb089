"""Names that are all different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["numbered"]


def numbered(names: Iterable[str]) -> list[str]:
    """The names in their order. Of several that are alike the second gets a `.1`, the next a `.2`; so ranks that have
    them in one order call them the same.
    """
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}.{seen[name] - 1}")
    return result
