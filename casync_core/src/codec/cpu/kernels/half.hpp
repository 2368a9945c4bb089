#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// Sixteen lanes of float16 and bfloat16, to and from float32: rounding to nearest even, NaNs quieted with the
/// payload's top bits kept. Where the processor has F16C its instructions are used, elsewhere integer arithmetic that
/// gives the same bits. AVX512_BF16's conversion is not used: it flushes subnormal numbers to zero.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE U32x16 widen(const std::uint16_t* from) {
  U32x16 out;
  for (int k = 0; k < kRegisters; ++k) {
    ShortRegister narrow;
    __builtin_memcpy(&narrow, from + k * kLanes, sizeof narrow);
    out.r[k] = __builtin_convertvector(narrow, UintRegister);
  }
  return out;
}
CASYNC_INLINE void narrow(std::uint16_t* to, const U32x16& a) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(__builtin_bit_cast(__m512i, a.r[0])));
#else
  for (int k = 0; k < kRegisters; ++k) {
    const ShortRegister low = __builtin_convertvector(a.r[k], ShortRegister);
    __builtin_memcpy(to + k * kLanes, &low, sizeof low);
  }
#endif
}

struct Float16 {
  CASYNC_INLINE static F32x16 read(const std::uint16_t* from) {
#if defined(__F16C__) && defined(__AVX512F__)
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}};
#elif defined(__F16C__)
    F32x16 out;
    for (int k = 0; k < kRegisters; ++k)
      out.r[k] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * kLanes)));
    return out;
#else
    U32x16 out = widen(from);
    for (int k = 0; k < kRegisters; ++k) {
      const UintRegister sign = (out.r[k] & 0x8000U) << 16;
      const UintRegister magnitude = out.r[k] & 0x7fffU;
      const UintRegister normal = (magnitude << 13) + (112U << 23);
      // A subnormal is an integer multiple of 2^-24, and the product is exact.
      const FloatRegister units = __builtin_convertvector(__builtin_bit_cast(IntRegister, magnitude), FloatRegister);
      const auto subnormal = __builtin_bit_cast(UintRegister, units * 0x1p-24F);
      const UintRegister special = (magnitude << 13) | 0x7f800000U;
      const UintRegister quiet = magnitude > 0x7c00U ? UintRegister{} + 0x400000U : UintRegister{};
      UintRegister value = magnitude < 0x400U ? subnormal : normal;
      value = magnitude >= 0x7c00U ? (special | quiet) : value;
      out.r[k] = value | sign;
    }
    return as_floats(out);
#endif
  }

  CASYNC_INLINE static void write(std::uint16_t* to, const F32x16& a) {
#if defined(__F16C__) && defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a.r[0], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    for (int k = 0; k < kRegisters; ++k)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k * kLanes), _mm256_cvtps_ph(a.r[k], _MM_FROUND_TO_NEAREST_INT));
#else
    U32x16 out = as_bits(a);
    for (int k = 0; k < kRegisters; ++k) {
      const UintRegister sign = (out.r[k] >> 16) & 0x8000U;
      const UintRegister magnitude = out.r[k] & 0x7fffffffU;
      const UintRegister normal = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
      // Adding 0.5, whose last place is 2^-24, makes the addition round to a multiple of the smallest subnormal.
      const FloatRegister shifted = __builtin_bit_cast(FloatRegister, magnitude) + 0.5F;
      const UintRegister subnormal = __builtin_bit_cast(UintRegister, shifted) - 0x3f000000U;
      const UintRegister nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
      UintRegister value = magnitude < 0x38800000U ? subnormal : normal;
      value = magnitude >= 0x477ff000U ? UintRegister{} + 0x7c00U : value;
      value = magnitude > 0x7f800000U ? nan : value;
      out.r[k] = value | sign;
    }
    narrow(to, out);
#endif
  }
};

struct BFloat16 {
  CASYNC_INLINE static F32x16 read(const std::uint16_t* from) {
    U32x16 out = widen(from);
    for (int k = 0; k < kRegisters; ++k) out.r[k] <<= 16;
    return as_floats(out);
  }
  CASYNC_INLINE static void write(std::uint16_t* to, const F32x16& a) {
    U32x16 out = as_bits(a);
    for (int k = 0; k < kRegisters; ++k) {
      const UintRegister bits = out.r[k];
      const UintRegister rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
      const UintRegister nan = (bits >> 16) | 0x40U;
      out.r[k] = (bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded;
    }
    narrow(to, out);
  }
};

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
