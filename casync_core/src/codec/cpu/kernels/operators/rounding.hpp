#pragma once

#include "codec/cpu/kernels/lanes.hpp"

/// CompLL's rint, floor, ceil and sqrt: whole numbers as floats, zeros with the sign of what was rounded, what is not
/// finite as it was.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE float with_sign_of(float sign, float a) { return __builtin_copysignf(a, sign); }
CASYNC_INLINE F32x16 with_sign_of(const F32x16& sign, const F32x16& a) {
  U32x16 out = as_bits(a) & 0x7fffffffU;
  for (int k = 0; k < kRegisters; ++k) out.r[k] |= as_bits(sign).r[k] & 0x80000000U;
  return as_floats(out);
}

template <typename T>
CASYNC_INLINE T constant(float value) {
  if constexpr (sizeof(T) == sizeof(float))
    return value;
  else
    return lanes(value);
}

/// For processors without an instruction: the sum with 2^23 has no room for a fraction, and rounds to nearest even.
template <typename T>
CASYNC_INLINE T round_nearest_by_sum(const T& a) {
  const T all = constant<T>(0x1p23F);
  const T rounded = subtract(add(magnitude(a), all), all);
  return choose(less(magnitude(a), all), with_sign_of(a, rounded), a);
}
template <typename T>
CASYNC_INLINE T round_down_by_sum(const T& a) {
  const T nearest = round_nearest_by_sum(a);
  return with_sign_of(a, choose(greater(nearest, a), subtract(nearest, constant<T>(1.0F)), nearest));
}
template <typename T>
CASYNC_INLINE T round_up_by_sum(const T& a) {
  const T nearest = round_nearest_by_sum(a);
  return with_sign_of(a, choose(less(nearest, a), add(nearest, constant<T>(1.0F)), nearest));
}

CASYNC_INLINE float round_nearest(float a) { return round_nearest_by_sum(a); }
CASYNC_INLINE float round_down(float a) { return round_down_by_sum(a); }
CASYNC_INLINE float round_up(float a) { return round_up_by_sum(a); }

#if defined(__AVX512BW__)
#define CASYNC_ROUND(name, mode) \
  CASYNC_INLINE F32x16 name(const F32x16& a) { return {{_mm512_roundscale_ps(a.r[0], (mode) | _MM_FROUND_NO_EXC)}}; }
#elif defined(__AVX2__)
#define CASYNC_ROUND(name, mode)                                                                       \
  CASYNC_INLINE F32x16 name(F32x16 a) {                                                                \
    for (int k = 0; k < kRegisters; ++k) a.r[k] = _mm256_round_ps(a.r[k], (mode) | _MM_FROUND_NO_EXC); \
    return a;                                                                                          \
  }
#else
#define CASYNC_ROUND(name, mode) \
  CASYNC_INLINE F32x16 name(const F32x16& a) { return name##_by_sum(a); }
#endif
CASYNC_ROUND(round_nearest, _MM_FROUND_TO_NEAREST_INT)
CASYNC_ROUND(round_down, _MM_FROUND_TO_NEG_INF)
CASYNC_ROUND(round_up, _MM_FROUND_TO_POS_INF)
#undef CASYNC_ROUND

CASYNC_INLINE float square_root(float a) { return __builtin_sqrtf(a); }
CASYNC_INLINE F32x16 square_root(F32x16 a) {
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    a.r[k] = _mm512_sqrt_ps(a.r[k]);
#elif defined(__AVX2__)
    a.r[k] = _mm256_sqrt_ps(a.r[k]);
#elif defined(__SSE2__)
    a.r[k] = _mm_sqrt_ps(a.r[k]);
#else
    for (int lane = 0; lane < kLanes; ++lane) a.r[k][lane] = __builtin_sqrtf(a.r[k][lane]);
#endif
  }
  return a;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
