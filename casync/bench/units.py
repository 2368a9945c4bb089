"""Rates, times and parts of a time, as command lines and cluster files have them."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["GBIT", "parse_duration", "parse_rate", "parse_seconds", "share"]

GBIT = 125e6
"""Bytes per second of 1 Gbit/s."""
_RATES = {"": 1.0, "bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": GBIT, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _with_unit(text: str, units: dict[str, float], kind: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", text.strip().lower().removesuffix("/s"))
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise argparse.ArgumentTypeError(f"{text!r} is no {kind}; write a number and one of {known}")
    return float(match[1]) * units[match[2]]


def parse_rate(text: str) -> float:
    """Bytes per second of a rate such as `1gbit`, `25gbit` or `110MB/s`."""
    rate = _with_unit(text, _RATES, "rate")
    if rate <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a link needs a rate above 0")
    return rate


def parse_seconds(text: str) -> float:
    """Seconds of a time such as `50us`, `0.2s` or `3ms`."""
    return _with_unit(text, _TIMES, "time")


def parse_duration(text: str) -> float:
    """Seconds of a time, as `parse_seconds` reads it, that is above 0."""
    seconds = parse_seconds(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time above 0")
    return seconds


def share(text: str) -> float:
    """A part of the time, such as `0.95`."""
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0 < part < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0 and below 1")
    return part
