#pragma once

#include "codec/cuda/kernels/lanes.hpp"

/// CompLL's rint, floor, ceil and sqrt, as codec/cpu/kernels/operators/rounding.hpp has them.
namespace casync::codec::cuda {

/// The sum with 2^23 has no room for a fraction, and rounds to nearest even.
CASYNC_DEVICE float round_nearest(float a) {
  const float rounded = magnitude(a) + 0x1p23F - 0x1p23F;
  return magnitude(a) < 0x1p23F ? copysignf(rounded, a) : a;
}
CASYNC_DEVICE float round_down(float a) {
  const float nearest = round_nearest(a);
  return copysignf(nearest > a ? nearest - 1.0F : nearest, a);
}
CASYNC_DEVICE float round_up(float a) {
  const float nearest = round_nearest(a);
  return copysignf(nearest < a ? nearest + 1.0F : nearest, a);
}
CASYNC_DEVICE float square_root(float a) { return sqrtf(a); }

/// floor(z + u) held between `least` and `most`, u = (r + 0.5) / 65536, with 16 fraction bits; NaN gives -32768.
CASYNC_DEVICE std::int32_t stochastic_floor(float z, std::int32_t r, float least, float most) {
  const float held = larger(least, smaller(most, z));
  if (!(held == held)) return -32768;
  return add(static_cast<std::int32_t>(round_nearest(held * 65536.0F)), r) >> 16;
}

}  // namespace casync::codec::cuda
