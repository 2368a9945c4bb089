"""A GPU that is none: arrays in the memory of the stand-in for CUDA's driver (tests/cuda/standin), and an adaptor.

The host cannot read or write that memory: who tries ends the process, with what was accessed. What is computed there is
a kernel: it runs later, in the order of the current stream.
"""
