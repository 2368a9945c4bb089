"""Slurm's way to write a list of hosts."""

from __future__ import annotations

import re

__all__ = ["HostError", "expand_hosts"]


class HostError(ValueError):
    """A host list that cannot be meant."""


def expand_hosts(text: str) -> list[str]:
    """`n[1-2,07],gpu` as n1, n2, n07, gpu."""
    names = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        found = [""]
        for plain, numbers in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", item):
            found = [name + part for name in found for part in ([plain] if plain else _expand_numbers(numbers, text))]
        names += found
    return names


def _expand_numbers(text: str, whole: str) -> list[str]:
    numbers = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item)
        if match is None:
            raise HostError(f"Slurm's host list {whole!r}: {item!r} is not a number or a range")
        numbers += [f"{n:0{len(match[1])}}" for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return numbers
