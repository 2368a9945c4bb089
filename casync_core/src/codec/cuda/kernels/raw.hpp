#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/raw_arguments.hpp"
#include "codec/cuda/kernels/team.hpp"

/// Elements of the gradient's own dtype to float32 and back, and the sum of uncompressed gradients: the kernels of
/// codec/cpu/kernels/raw.cc, with their rounding. It is device code of its own, for NVRTC as it stands.
namespace casync::codec::cuda {

/// Magnitudes from kOverflow on, as float32 bits, are stored as Inf or NaN.
struct Float32 {
  using Element = float;
  static constexpr std::int32_t kOverflow = 0x7f800000;
  static CASYNC_DEVICE float read(float element) { return element; }
  static CASYNC_DEVICE float write(float value) { return value; }
};
struct Float64 {
  using Element = double;
  static constexpr std::int32_t kOverflow = 0x7f800000;
  static CASYNC_DEVICE float read(double element) { return static_cast<float>(element); }
  static CASYNC_DEVICE double write(float value) { return static_cast<double>(value); }
};

/// NaNs are quieted and keep their top bits. The operations are those of codec/cpu/kernels/half.hpp.
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

/// out = value(i) for each element of a piece of n.
template <typename Format, typename Team, typename To, typename Value>
CASYNC_DEVICE void produce(const Team& team, std::int64_t piece, std::int64_t n, std::int32_t* nonfinite, const To& to,
                           const Value& value) {
  bool lost = false;
  const std::int64_t end = smaller((piece + 1) * kPiece, n);
  for (std::int64_t i = piece * kPiece + team.rank(); i < end; i += team.size()) {
    const float made = value(i);
    lost |= (bit_pattern(made) & 0x7fffffff) >= Format::kOverflow;
    to(i, made);
  }
  if (lost) *nonfinite = 1;
}

template <typename Format, typename Team>
CASYNC_DEVICE void load_raw(const Team& team, const RawLoad& load, std::int64_t piece) {
  const auto* const src = static_cast<const typename Format::Element*>(load.src);
  produce<Float32>(
      team, piece, load.n, load.nonfinite, [&](std::int64_t i, float value) { load.out[i] = value; },
      [&](std::int64_t i) {
        const float value = Format::read(src[i]) * load.factor;
        return load.addend == nullptr ? value : load.addend[i] + value;
      });
}

template <typename Format, typename Team, typename Change>
CASYNC_DEVICE void store_changed(const Team& team, const RawStore& store, std::int64_t piece, const Change& change) {
  auto* const dst = static_cast<typename Format::Element*>(store.dst);
  produce<Format>(
      team, piece, store.n, store.nonfinite, [&](std::int64_t i, float value) { dst[i] = Format::write(value); },
      [&](std::int64_t i) { return change(store.src[i]); });
}
template <typename Format, typename Team>
CASYNC_DEVICE void store_raw(const Team& team, const RawStore& store, std::int64_t piece) {
  store_changed<Format>(team, store, piece, [&](float value) { return value * store.first * store.second; });
}
template <typename Format, typename Team>
CASYNC_DEVICE void divide_raw(const Team& team, const RawStore& store, std::int64_t piece) {
  store_changed<Format>(team, store, piece, [&](float value) { return value / store.first * store.second; });
}

template <typename Format, typename Team>
CASYNC_DEVICE void merge_raw(const Team& team, const RawMerge& merge, std::int64_t piece) {
  using Element = typename Format::Element;
  const auto of = [&](const RawSource& source, std::int64_t i) {
    if (source.raw != nullptr) return source.raw[i] * source.factor;
    return Format::read(load<Element>(source.payload + i * static_cast<std::int64_t>(sizeof(Element))));
  };
  produce<Float32>(
      team, piece, merge.n, merge.nonfinite, [&](std::int64_t i, float value) { merge.out[i] = value; },
      [&](std::int64_t i) {
        float sum = of(merge.sources[0], i);
        for (int s = 1; s < merge.count; ++s) {
          const float next = of(merge.sources[s], i);
          sum = !merge.largest ? sum + next : next > sum || next != next ? next : sum;
        }
        return sum;
      });
}

CASYNC_KERNEL(casync_load_float32, BlockTeam<256>, RawLoad, load_raw<Float32>)
CASYNC_KERNEL(casync_load_float16, BlockTeam<256>, RawLoad, load_raw<Float16>)
CASYNC_KERNEL(casync_load_bfloat16, BlockTeam<256>, RawLoad, load_raw<BFloat16>)
CASYNC_KERNEL(casync_load_float64, BlockTeam<256>, RawLoad, load_raw<Float64>)
CASYNC_KERNEL(casync_store_float32, BlockTeam<256>, RawStore, store_raw<Float32>)
CASYNC_KERNEL(casync_store_float16, BlockTeam<256>, RawStore, store_raw<Float16>)
CASYNC_KERNEL(casync_store_bfloat16, BlockTeam<256>, RawStore, store_raw<BFloat16>)
CASYNC_KERNEL(casync_store_float64, BlockTeam<256>, RawStore, store_raw<Float64>)
CASYNC_KERNEL(casync_divide_float32, BlockTeam<256>, RawStore, divide_raw<Float32>)
CASYNC_KERNEL(casync_divide_float16, BlockTeam<256>, RawStore, divide_raw<Float16>)
CASYNC_KERNEL(casync_divide_bfloat16, BlockTeam<256>, RawStore, divide_raw<BFloat16>)
CASYNC_KERNEL(casync_merge_float32, BlockTeam<256>, RawMerge, merge_raw<Float32>)
CASYNC_KERNEL(casync_merge_float16, BlockTeam<256>, RawMerge, merge_raw<Float16>)
CASYNC_KERNEL(casync_merge_bfloat16, BlockTeam<256>, RawMerge, merge_raw<BFloat16>)

}  // namespace casync::codec::cuda
