"""C++ for the CPU."""
