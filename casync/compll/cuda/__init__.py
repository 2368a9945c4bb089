"""C++ for CUDA."""
