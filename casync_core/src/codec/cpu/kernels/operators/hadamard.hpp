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

/// Sixteen neighbours: elements 1, 2, 4 and 8 apart. Of two that are h apart the first becomes their sum, and the
/// second what is left of the first without it.
#if defined(__AVX512BW__)
CASYNC_INLINE __m512 summed(__m512 x, __m512 other, __mmask16 second) {
  return _mm512_mask_sub_ps(_mm512_add_ps(other, x), second, other, x);
}
CASYNC_INLINE F32x16 transform_sixteen(F32x16 x) {
  __m512 a = x.r[0];
  a = summed(a, _mm512_permute_ps(a, 0b10'11'00'01), 0b1010'1010'1010'1010);
  a = summed(a, _mm512_permute_ps(a, 0b01'00'11'10), 0b1100'1100'1100'1100);
  a = summed(a, _mm512_shuffle_f32x4(a, a, 0b10'11'00'01), 0b1111'0000'1111'0000);
  a = summed(a, _mm512_shuffle_f32x4(a, a, 0b01'00'11'10), 0b1111'1111'0000'0000);
  return {{a}};
}
#elif defined(__AVX2__)
template <int kSecond>
CASYNC_INLINE __m256 summed(__m256 x, __m256 other) {
  return _mm256_blend_ps(_mm256_add_ps(other, x), _mm256_sub_ps(other, x), kSecond);
}
CASYNC_INLINE __m256 transform_eight(__m256 a) {
  a = summed<0b1010'1010>(a, _mm256_permute_ps(a, 0b10'11'00'01));
  a = summed<0b1100'1100>(a, _mm256_permute_ps(a, 0b01'00'11'10));
  return summed<0b1111'0000>(a, _mm256_permute2f128_ps(a, a, 1));
}
CASYNC_INLINE F32x16 transform_sixteen(F32x16 x) {
  const FloatRegister a = transform_eight(x.r[0]);
  const FloatRegister b = transform_eight(x.r[1]);
  return {{a + b, a - b}};
}
#else
CASYNC_INLINE F32x16 transform_sixteen(F32x16 x) {
  constexpr FloatRegister kAlternating{1, -1, 1, -1};
  constexpr FloatRegister kHalves{1, 1, -1, -1};
  for (FloatRegister& a : x.r) {
    a = FloatRegister{a[1], a[0], a[3], a[2]} + a * kAlternating;
    a = FloatRegister{a[2], a[3], a[0], a[1]} + a * kHalves;
  }
  const FloatRegister sums[]{x.r[0] + x.r[1], x.r[0] - x.r[1], x.r[2] + x.r[3], x.r[2] - x.r[3]};
  return {{sums[0] + sums[2], sums[1] + sums[3], sums[0] - sums[2], sums[1] - sums[3]}};
}
#endif

/// Neighbours that there are registers for, at once: all stages up to that many.
constexpr std::int64_t kAtOnce = kRegisters == 1 ? 256 : 64;
CASYNC_INLINE void transform_at_once(float* x) {
  constexpr int kCount = kAtOnce / 16;
  F32x16 v[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) v[i] = transform_sixteen(load(x + 16 * i));
#pragma GCC unroll 4
  for (int h = 1; h < kCount; h *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      if ((i & h) != 0) continue;
      const F32x16 a = v[i];
      v[i] = a + v[i + h];
      v[i + h] = a - v[i + h];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) store(x + 16 * i, v[i]);
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
      if (block >= kAtOnce) {
        for (std::int64_t i = from; i < from + block; i += kAtOnce) transform_at_once(out + i);
        stages(out + from, block, kAtOnce);
      } else {
        for (std::int64_t i = from; i < from + block; i += 16) store(out + i, transform_sixteen(load(out + i)));
        stages(out + from, block, 16);
      }
    }
    if (size > block) stages(out, size, block);
  }
  const float root = __builtin_sqrtf(static_cast<float>(size));
  if ((__builtin_bit_cast(std::uint32_t, root) & 0x7fffffU) == 0) {
    const float inverse = 1 / root;  // of a power of two, so that a product has the bits of the quotient
    for (std::int64_t i = 0; i < size; ++i) out[i] *= inverse;
  } else {
    for (std::int64_t i = 0; i < size; ++i) out[i] /= root;
  }
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
