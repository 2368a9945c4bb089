"""Horovod's `horovod.common`: what scripts import from there."""
