// The kernels of one generated file, called with all they need: memory that is as large as they say and no larger.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "codec/cpu/kernels/kernels.hpp"

namespace casync::codec {
Reading reading() { return Reading::fetched; }
namespace CASYNC_KERNEL_ISA {
extern const UnitKernels HARNESS_KERNELS[];
}
}  // namespace casync::codec

/// The facts of a unit as they come from outside.
struct Given {
  std::int64_t n;
  std::uint64_t name_hash, coordinate;
  const casync::codec::Parameter* parameters;
  float* const* state;
  std::int32_t choice, rows, cols, step, world, rank, nesterov;
  float lr, momentum;

  const casync::codec::UnitKernels& kernels() const {
    return casync::codec::CASYNC_KERNEL_ISA::HARNESS_KERNELS[choice];
  }
  casync::codec::Facts facts(int round) const {
    return {.parameters = parameters,
            .state = state,
            .n = n,
            .rows = rows,
            .cols = cols,
            .step = step,
            .world = world,
            .rank = rank,
            .name = static_cast<std::int32_t>(static_cast<std::uint32_t>(name_hash)),
            .lr = lr,
            .momentum = momentum,
            .nesterov = nesterov != 0,
            .key = {name_hash, static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(round),
                    static_cast<std::uint32_t>(rank) << 1, coordinate}};
  }
};

/// Scratch memory on a cache line, of bytes that make NaN of every float; what is behind it must stay as it was.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)), memory_(new (std::align_val_t{64}) unsigned char[bytes_ + kBehind]) {
    std::memset(memory_, 0xff, bytes_ + kBehind);
  }
  ~Scratch() { ::operator delete[](memory_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* data() { return reinterpret_cast<std::byte*>(memory_); }
  bool kept() const {
    for (std::size_t i = bytes_; i < bytes_ + kBehind; ++i)
      if (memory_[i] != 0xff) return false;
    return true;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kBehind = 0;  // the sanitizer knows where it ends
#else
  static constexpr std::size_t kBehind = 256;
#endif
  std::size_t bytes_;
  unsigned char* memory_;
};
