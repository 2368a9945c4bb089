"""Horovod's place for helpers of its launcher."""
