"""The collectives of every adaptor, over what it says of its framework's tensors (`casync.tensors`).

`interface` has what a training script calls; each operation is in a file of its own. No framework is imported here.
"""
