#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/operators/rounding.hpp"

/// The orthonormal Walsh-Hadamard transform, as codec/cpu/kernels/operators/hadamard.hpp explains it: stage by stage, a
/// thread has a pair of elements.
namespace casync::codec::cuda {

/// The smallest power of two that is not less than n; 1 for n = 0.
CASYNC_DEVICE std::int64_t power_of_two(std::int64_t n) {
  std::int64_t size = 1;
  while (size < n) size *= 2;
  return size;
}

/// `out` has power_of_two(n) elements, and gets the transform of the values with zeros behind.
template <typename Team, typename Source>
CASYNC_DEVICE void hadamard(const Team& team, Source values, std::int64_t n, float* out) {
  const std::int64_t size = power_of_two(n);
  for (std::int64_t i = team.rank(); i < size; i += team.size()) out[i] = i < n ? at(values, i) : 0.0F;
  team.barrier();
  for (std::int64_t h = 1; h < size; h *= 2) {
    for (std::int64_t pair = team.rank(); pair < size / 2; pair += team.size()) {
      const std::int64_t i = pair / h * 2 * h + pair % h;
      const float a = out[i];
      const float b = out[i + h];
      out[i] = a + b;
      out[i + h] = a - b;
    }
    team.barrier();
  }
  const float root = square_root(static_cast<float>(size));
  for (std::int64_t i = team.rank(); i < size; i += team.size()) out[i] = out[i] / root;
  team.barrier();
}

}  // namespace casync::codec::cuda
