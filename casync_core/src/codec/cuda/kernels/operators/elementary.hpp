#pragma once

#include "codec/cuda/kernels/lanes.hpp"

/// CompLL's exp2, log2 and cos: the operations of codec/cpu/kernels/operators/elementary.hpp, where they are explained,
/// one by one, so that a device has its bits.
namespace casync::codec::cuda {

template <int kTerms>
CASYNC_DEVICE float polynomial(float x, const float (&c)[kTerms]) {
  float sum = c[kTerms - 1];
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

constexpr float kWhole = 0x1.8p23F;
constexpr std::int32_t kWholePattern = 0x4b400000;

CASYNC_DEVICE float exp2(float x) {
  constexpr float kTerms[]{0x1.62e43p-1F, 0x1.ebfbdcp-3F,  0x1.c6af7cp-5F,
                           0x1.3b2dep-7F, 0x1.5f082ep-10F, 0x1.416b52p-13F};
  const float held = larger(smaller(x, 200.0F), -200.0F);
  const float sum = held + kWhole;
  const float f = held - (sum - kWhole);
  const float power = 1.0F + f * polynomial(f, kTerms);
  const std::int32_t n = bit_pattern(sum) - kWholePattern;
  const std::int32_t half = n >> 1;
  const float scaled = power * of_pattern(shift_left(half + 127, 23)) * of_pattern(shift_left(n - half + 127, 23));
  return x == x ? scaled : x;
}

CASYNC_DEVICE float log2(float x) {
  constexpr float kTerms[]{0x1.715476p+0F, -0x1.715476p-1F, 0x1.ec7208p-2F,  -0x1.7156cap-2F, 0x1.2739b4p-2F,
                           -0x1.eb164p-3F, 0x1.abb432p-3F,  -0x1.8be26ap-3F, 0x1.4f067p-3F,   -0x1.4780ccp-4F};
  constexpr std::int32_t kRootOfHalf = 0x3f3504f3;
  if (!(x >= 0.0F)) return kNan;
  if (x == 0.0F) return -kInfinity;
  if (x == kInfinity) return x;
  const bool subnormal = x < 0x1p-126F;
  const std::int32_t pattern = bit_pattern(subnormal ? x * 0x1p23F : x);
  const std::int32_t e = (pattern - kRootOfHalf) >> 23;
  const float t = of_pattern(pattern - shift_left(e, 23)) - 1.0F;
  return to_float(e - (subnormal ? 23 : 0)) + t * polynomial(t, kTerms);
}

CASYNC_DEVICE float cosine(float x) {
  constexpr float kHalfPi[]{0x1.92p+0F, 0x1.fap-12F, 0x1.54p-20F, 0x1.10b462p-30F};
  constexpr float kCosine[]{0x1.55554ap-5F, -0x1.6c0c1ap-10F, 0x1.99e0ecp-16F};
  constexpr float kSine[]{-0x1.555546p-3F, 0x1.11077ap-7F, -0x1.9954a8p-13F};
  if (!(magnitude(x) <= 100000.0F)) return kNan;
  const float sum = x * 0x1.45f306p-1F + kWhole;
  const float n = sum - kWhole;
  float r = x;
  for (int part = 0; part < 4; ++part) r = r - n * kHalfPi[part];
  const float z = r * r;
  const float even = 1.0F - z * 0.5F + z * z * polynomial(z, kCosine);
  const float odd = r + r * z * polynomial(z, kSine);
  const std::int32_t quarter = bit_pattern(sum);
  const std::int32_t sign = shift_left((quarter + 1) & 2, 30);
  return of_pattern(bit_pattern((quarter & 1) != 0 ? odd : even) ^ sign);
}

}  // namespace casync::codec::cuda
