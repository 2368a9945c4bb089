#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/kernels/device.hpp"

/// How scratch memory is divided: first what the blocks of a grid share, then a part for each team.
namespace casync::codec::cuda {

/// The most blocks of a launch of teams of several blocks.
constexpr int kMostBlocks = 1024;

/// Bytes at the front: a total of each block, and the two counters of each team's barrier. They must be zero when the
/// memory is first used; each kernel leaves them as the next one needs them.
constexpr std::int64_t kGridBytes = 2 * kMostBlocks * static_cast<std::int64_t>(sizeof(std::int64_t));

/// Floats that a reduction needs to work with in a unit of n elements; arrays may have twice as many.
CASYNC_DEVICE std::int64_t work_of(std::int64_t n) { return 16 * (2 * n / 1024 + 2) + 512; }

/// Bytes of an array, and of so many arrays and reductions side by side.
CASYNC_DEVICE std::int64_t scratch_of(std::int64_t elements) { return (elements + 15) / 16 * 64; }
CASYNC_DEVICE std::int64_t scratch_of(std::int64_t room, int arrays, int reductions) {
  return arrays * scratch_of(room) + reductions * scratch_of(work_of(room));
}

/// The next array of so many elements.
template <typename T>
CASYNC_DEVICE T* take(std::byte*& scratch, std::int64_t elements) {
  std::byte* const here = scratch;
  scratch += scratch_of(elements);
  return reinterpret_cast<T*>(here);
}

}  // namespace casync::codec::cuda
