#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// The orthonormal Walsh-Hadamard transform: sums and differences of elements 1, 2, 4, ... apart, then a division by
/// the square root of the length. Which stages are done together changes nothing in any element.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// The smallest power of two that is not less than n; 1 for n = 0.
CASYNC_INLINE std::int64_t power_of_two(std::int64_t n) {
  std::int64_t size = 1;
  while (size < n) size *= 2;
  return size;
}

/// Elements of the transforms of n elements in chunks, each with zeros up to a power of two.
CASYNC_INLINE std::int64_t padded_to_powers_of_two(std::int64_t n, std::int64_t chunk) {
  if (chunk < 1) return power_of_two(n);
  const std::int64_t rest = n % chunk;
  return n / chunk * power_of_two(chunk) + (rest > 0 ? power_of_two(rest) : 0);
}

/// Sixteen neighbours: elements 1, 2, 4 and 8 apart.
CASYNC_INLINE void transform_sixteen(float* x) {
  using Four = float __attribute__((vector_size(16)));
  constexpr Four kAlternating{1, -1, 1, -1};
  constexpr Four kHalves{1, 1, -1, -1};
  Four four[4];
  __builtin_memcpy(four, x, 64);
  for (Four& a : four) {
    a = Four{a[1], a[0], a[3], a[2]} + a * kAlternating;
    a = Four{a[2], a[3], a[0], a[1]} + a * kHalves;
  }
  const Four sums[]{four[0] + four[1], four[0] - four[1], four[2] + four[3], four[2] - four[3]};
  const Four out[]{sums[0] + sums[2], sums[1] + sums[3], sums[0] - sums[2], sums[1] - sums[3]};
  __builtin_memcpy(x, out, 64);
}

/// Elements h and 2 h apart, h a multiple of 16.
CASYNC_INLINE void two_stages(float* x, std::int64_t size, std::int64_t h) {
  for (std::int64_t block = 0; block < size; block += 4 * h) {
    for (std::int64_t i = block; i < block + h; i += 16) {
      const F32x16 a = load(x + i);
      const F32x16 b = load(x + i + h);
      const F32x16 c = load(x + i + 2 * h);
      const F32x16 d = load(x + i + 3 * h);
      const F32x16 sums[]{a + b, a - b, c + d, c - d};
      store(x + i, sums[0] + sums[2]);
      store(x + i + h, sums[1] + sums[3]);
      store(x + i + 2 * h, sums[0] - sums[2]);
      store(x + i + 3 * h, sums[1] - sums[3]);
    }
  }
}
CASYNC_INLINE void one_stage(float* x, std::int64_t size, std::int64_t h) {
  for (std::int64_t block = 0; block < size; block += 2 * h) {
    for (std::int64_t i = block; i < block + h; i += 16) {
      const F32x16 a = load(x + i);
      const F32x16 b = load(x + i + h);
      store(x + i, a + b);
      store(x + i + h, a - b);
    }
  }
}
CASYNC_INLINE void stages(float* x, std::int64_t size, std::int64_t h) {
  for (; 4 * h <= size; h *= 4) two_stages(x, size, h);
  if (2 * h <= size) one_stage(x, size, h);
}

/// `out` has power_of_two(n) elements, may be `values`, and gets the transform of them with zeros behind.
inline void hadamard(const float* values, std::int64_t n, float* out) {
  constexpr std::int64_t kCached = 4096;
  const std::int64_t size = power_of_two(n);
  if (out != values && n > 0) __builtin_memcpy(out, values, static_cast<std::size_t>(n) * sizeof(float));
  __builtin_memset(out + n, 0, static_cast<std::size_t>(size - n) * sizeof(float));
  if (size < 16) {
    for (std::int64_t h = 1; h < size; h *= 2) {
      for (std::int64_t i = 0; i < size; ++i) {
        if ((i & h) != 0) continue;
        const float a = out[i];
        const float b = out[i + h];
        out[i] = a + b;
        out[i + h] = a - b;
      }
    }
  } else {
    const std::int64_t block = size < kCached ? size : kCached;
    for (std::int64_t from = 0; from < size; from += block) {
      for (std::int64_t i = from; i < from + block; i += 16) transform_sixteen(out + i);
      stages(out + from, block, 16);
    }
    if (size > block) stages(out, size, block);
  }
  const float root = __builtin_sqrtf(static_cast<float>(size));
  for (std::int64_t i = 0; i < size; ++i) out[i] /= root;
}

/// Of each chunk, one behind the other; `out` is another array.
inline void hadamard(const float* values, std::int64_t n, std::int64_t chunk, float* out) {
  if (chunk < 1) chunk = n;
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t count = n - begin < chunk ? n - begin : chunk;
    hadamard(values + begin, count, out);
    out += power_of_two(count);
  }
  if (n == 0) *out = 0;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
