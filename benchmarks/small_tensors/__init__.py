"""small_tensors: what 200 tensors of 4 KiB cost, beside one MPI_Allreduce. See __main__.py."""
