"""Horovod's place for the launcher, which is `casync.launcher` here: helpers that its users' tests import from it."""
