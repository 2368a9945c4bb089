"""How much of a long and lossy link an allreduce fills: see `__main__`."""
