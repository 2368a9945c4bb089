#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "casync/types.hpp"

namespace casync::bench {

/// Memory from the beginning of a cache line on, as frameworks align their tensors; zeroed, so every page is touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes);

  std::span<std::byte> bytes() const { return bytes_; }
  std::span<float> floats() const { return {reinterpret_cast<float*>(bytes_.data()), bytes_.size() / sizeof(float)}; }

 private:
  std::unique_ptr<std::byte[]> owned_;
  std::span<std::byte> bytes_;
};

/// What all cases work on.
class Buffers {
 public:
  explicit Buffers(Shape shape);

  /// Normal random numbers, others in each step.
  std::span<const float> gradient(std::uint32_t step = 0) const;

  Shape shape;
  Memory out;  ///< also the accumulator of decode+merge

 private:
  Memory numbers_;  ///< of which each step sees another part
};

}  // namespace casync::bench
