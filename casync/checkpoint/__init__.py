"""Saves what codecs keep, so that a training goes on where it was."""

from casync.checkpoint.job import load_state, save_state

__all__ = ["load_state", "save_state"]
