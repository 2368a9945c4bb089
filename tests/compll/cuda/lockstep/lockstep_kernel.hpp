#pragma once

#include <cstdint>

namespace casync::codec::cuda {

/// A kernel on the CPU. `run` copies the arguments first, as a launch does. `visit` calls `visitor` with `context` and
/// the address of each pointer in them; `run` does so with what lies in the memory of the device.
struct LockstepKernel {
  using Visitor = void (*)(void* context, void** pointer);

  int threads;
  bool wide;
  std::int64_t argument_bytes;
  void (*run)(const void* arguments, int teams, void* context, Visitor visitor);
  void (*visit)(void* arguments, void* context, Visitor visitor);
};

}  // namespace casync::codec::cuda
