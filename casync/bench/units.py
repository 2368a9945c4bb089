"""Rates, times and parts of a time, as command lines and cluster files have them."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["GBIT", "count", "parse_duration", "parse_rate", "parse_seconds", "share"]

GBIT = 125e6
"""Bytes per second of 1 Gbit/s."""
_LEAST_RATE, _MOST_SECONDS = 1e3, 1e6  # which the virtual clock counts in nanoseconds
_RATES = {"bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": GBIT, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
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
    if not _LEAST_RATE <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a rate of at least {_LEAST_RATE / 125:g} kbit per second")
    return rate


def parse_seconds(text: str) -> float:
    """Seconds of a time such as `50us`, `0.2s` or `3ms`."""
    seconds = _with_unit(text, _TIMES, "time")
    if seconds > _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time of at most {_MOST_SECONDS:,.0f} s")
    return seconds


def parse_duration(text: str) -> float:
    """Seconds of a time, as `parse_seconds` reads it, that is above 0."""
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time above 0")
    return seconds


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not re.fullmatch(r"0*[1-9]\d{0,17}", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def share(text: str) -> float:
    """A part of the time, such as `0.95`."""
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0 < part < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0 and below 1")
    return part
