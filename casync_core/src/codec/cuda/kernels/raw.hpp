#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/half.hpp"
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

/// Integers of payloads that merge: a sum stays within -127 and 127 (Merge::saturating).
struct Int8 {
  using Element = std::int8_t;
  static constexpr std::int32_t kOverflow = 0x7f800000;
  static CASYNC_DEVICE float read(std::int8_t element) { return static_cast<float>(element); }
  static CASYNC_DEVICE std::int8_t write(float value) { return static_cast<std::int8_t>(to_int(value)); }
  static CASYNC_DEVICE float held(float sum) { return smaller(larger(sum, -127.0F), 127.0F); }
};

template <typename Format>
constexpr bool kSaturates = false;
template <>
constexpr bool kSaturates<Int8> = true;

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
          if constexpr (kSaturates<Format>)
            sum = Int8::held(sum + next);
          else
            sum = !merge.largest ? sum + next : next > sum || next != next ? next : sum;
        }
        return sum;
      });
}

CASYNC_KERNEL(casync_load_float32, BlockTeam<256>, RawLoad, load_raw<Float32>)
CASYNC_KERNEL(casync_load_float16, BlockTeam<256>, RawLoad, load_raw<Float16>)
CASYNC_KERNEL(casync_load_bfloat16, BlockTeam<256>, RawLoad, load_raw<BFloat16>)
CASYNC_KERNEL(casync_load_float64, BlockTeam<256>, RawLoad, load_raw<Float64>)
CASYNC_KERNEL(casync_load_int8, BlockTeam<256>, RawLoad, load_raw<Int8>)
CASYNC_KERNEL(casync_store_float32, BlockTeam<256>, RawStore, store_raw<Float32>)
CASYNC_KERNEL(casync_store_float16, BlockTeam<256>, RawStore, store_raw<Float16>)
CASYNC_KERNEL(casync_store_bfloat16, BlockTeam<256>, RawStore, store_raw<BFloat16>)
CASYNC_KERNEL(casync_store_float64, BlockTeam<256>, RawStore, store_raw<Float64>)
CASYNC_KERNEL(casync_store_int8, BlockTeam<256>, RawStore, store_raw<Int8>)
CASYNC_KERNEL(casync_divide_float32, BlockTeam<256>, RawStore, divide_raw<Float32>)
CASYNC_KERNEL(casync_divide_float16, BlockTeam<256>, RawStore, divide_raw<Float16>)
CASYNC_KERNEL(casync_divide_bfloat16, BlockTeam<256>, RawStore, divide_raw<BFloat16>)
CASYNC_KERNEL(casync_merge_float32, BlockTeam<256>, RawMerge, merge_raw<Float32>)
CASYNC_KERNEL(casync_merge_float16, BlockTeam<256>, RawMerge, merge_raw<Float16>)
CASYNC_KERNEL(casync_merge_bfloat16, BlockTeam<256>, RawMerge, merge_raw<BFloat16>)
CASYNC_KERNEL(casync_merge_int8, BlockTeam<256>, RawMerge, merge_raw<Int8>)

}  // namespace casync::codec::cuda
