"""Under which names ranks' gradients meet, rules see them, and codecs keep what they keep of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casync.collectives.numbered import numbered

__all__ = ["names_of"]


def names_of(variables: Sequence[Any], prefix: str | None) -> list[str]:
    """The paths of these variables of one optimizer, `hidden/kernel`, and before them `prefix` if there is one.

    What all paths begin with is left out, but for the last layer: a Sequential model has its own name there, with a
    number that depends on how many were made before, and none once it was loaded from a file.
    """
    paths = [variable.path.split("/") for variable in variables]
    shared = 0
    while paths and all(len(path) > shared + 2 and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return numbered("/".join([*([prefix] if prefix else []), *path[shared:]]) for path in paths)
