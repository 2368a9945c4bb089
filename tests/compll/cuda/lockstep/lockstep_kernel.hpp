#pragma once

#include <cstdint>

namespace casync::codec::cuda {

/// A kernel on the CPU. `run` copies the struct of arguments first, as a launch does.
struct LockstepKernel {
  int threads;
  bool whole_grid;
  std::int64_t argument_bytes;
  void (*run)(const void* arguments, int teams);
};

}  // namespace casync::codec::cuda
