#pragma once

#include "codec/cuda/kernels/lanes.hpp"

/// float16 and bfloat16, to and from float32. NaNs are quieted and keep their top bits. The operations are those of
/// codec/cpu/kernels/half.hpp. Magnitudes from kOverflow on, as float32 bits, are stored as Inf or NaN.
namespace casync::codec::cuda {

struct Float16 {
  using Element = std::uint16_t;
  static constexpr std::int32_t kOverflow = 0x477ff000;  // 65520, half-way to 2^16

  static CASYNC_DEVICE float read(std::uint16_t element) {
    const std::uint32_t sign = (element & 0x8000U) << 16;
    const std::uint32_t rest = element & 0x7fffU;
    std::uint32_t value = (rest << 13) + (112U << 23);
    // A subnormal is an integer multiple of 2^-24, and the product is exact.
    if (rest < 0x400U) value = __builtin_bit_cast(std::uint32_t, static_cast<float>(rest) * 0x1p-24F);
    if (rest >= 0x7c00U) value = (rest << 13) | 0x7f800000U | (rest > 0x7c00U ? 0x400000U : 0U);
    return __builtin_bit_cast(float, value | sign);
  }
  static CASYNC_DEVICE std::uint16_t write(float value) {
    const auto pattern = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t sign = (pattern >> 16) & 0x8000U;
    const std::uint32_t rest = pattern & 0x7fffffffU;
    std::uint32_t element = (rest + 0xfffU + ((rest >> 13) & 1U) - (112U << 23)) >> 13;
    // Adding 0.5, whose last place is 2^-24, makes the addition round to a multiple of the smallest subnormal.
    if (rest < 0x38800000U)
      element = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, rest) + 0.5F) - 0x3f000000U;
    if (rest >= static_cast<std::uint32_t>(kOverflow)) element = 0x7c00U;
    if (rest > 0x7f800000U) element = 0x7e00U | ((rest >> 13) & 0x3ffU);
    return static_cast<std::uint16_t>(element | sign);
  }
};
struct BFloat16 {
  using Element = std::uint16_t;
  static constexpr std::int32_t kOverflow = 0x7f7f8000;

  static CASYNC_DEVICE float read(std::uint16_t element) {
    return __builtin_bit_cast(float, std::uint32_t{element} << 16);
  }
  static CASYNC_DEVICE std::uint16_t write(float value) {
    const auto pattern = __builtin_bit_cast(std::uint32_t, value);
    const bool nan = (pattern & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = (pattern + 0x7fffU + ((pattern >> 16) & 1U)) >> 16;
    return static_cast<std::uint16_t>(nan ? (pattern >> 16) | 0x40U : rounded);
  }
};

/// A 16-bit float in memory.
template <typename Format>
struct Narrow {
  std::uint16_t bits;
};

CASYNC_DEVICE float to_half(float value) { return Float16::read(Float16::write(value)); }
CASYNC_DEVICE float to_bfloat16(float value) { return BFloat16::read(BFloat16::write(value)); }

}  // namespace casync::codec::cuda
