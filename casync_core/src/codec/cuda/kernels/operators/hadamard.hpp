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

/// Elements of the transforms of n elements in chunks, each with zeros up to a power of two.
CASYNC_DEVICE std::int64_t padded_to_powers_of_two(std::int64_t n, std::int64_t chunk) {
  if (chunk < 1) return power_of_two(n);
  const std::int64_t rest = n % chunk;
  return n / chunk * power_of_two(chunk) + (rest > 0 ? power_of_two(rest) : 0);
}

/// Of `count` chunks, one behind the other, each with zeros up to `size`, a power of two.
template <typename Team>
CASYNC_DEVICE void transform_chunks(const Team& team, const float* values, std::int64_t chunk, std::int64_t count,
                                    std::int64_t size, float* out) {
  for (std::int64_t i = team.rank(); i < count * size; i += team.size())
    out[i] = i % size < chunk ? values[i / size * chunk + i % size] : 0.0F;
  team.barrier();
  for (std::int64_t h = 1; h < size; h *= 2) {
    for (std::int64_t pair = team.rank(); pair < count * size / 2; pair += team.size()) {
      const std::int64_t i = pair / h * 2 * h + pair % h;
      const float a = out[i];
      const float b = out[i + h];
      out[i] = a + b;
      out[i + h] = a - b;
    }
    team.barrier();
  }
  const float root = square_root(static_cast<float>(size));
  for (std::int64_t i = team.rank(); i < count * size; i += team.size()) out[i] = out[i] / root;
  team.barrier();
}

/// `out` has padded_to_powers_of_two(n, chunk) elements and is another array.
template <typename Team>
CASYNC_DEVICE void hadamard(const Team& team, const float* values, std::int64_t n, std::int64_t chunk, float* out) {
  if (chunk < 1 || chunk >= n) return transform_chunks(team, values, n, 1, power_of_two(n), out);
  const std::int64_t whole = n / chunk;
  const std::int64_t rest = n % chunk;
  transform_chunks(team, values, chunk, whole, power_of_two(chunk), out);
  if (rest > 0)
    transform_chunks(team, values + whole * chunk, rest, 1, power_of_two(rest), out + whole * power_of_two(chunk));
}

}  // namespace casync::codec::cuda
