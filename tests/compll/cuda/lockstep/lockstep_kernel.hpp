#pragma once

#include <cstdint>

namespace casync::codec::cuda {

/// A kernel on the CPU. `run` copies the struct of arguments first, as a launch does. `visit` calls `f` with `context`
/// and the address of each pointer in the struct.
struct LockstepKernel {
  int threads;
  bool whole_grid;
  std::int64_t argument_bytes;
  void (*run)(const void* arguments, int teams);
  void (*visit)(void* arguments, void* context, void (*f)(void* context, void** pointer));
};

}  // namespace casync::codec::cuda
