#pragma once

#include "codec/cpu/kernels/lanes.hpp"

/// Compaction: the lanes that a mask chooses, one after the other at the end of an array, which is what `filter` and
/// `topk` are made of.
///
///   count += append(chosen, values, to + count);
///
/// All sixteen places from `to` on may be written, so arrays that are appended to have room for kSlack elements more
/// than they will hold. Nothing is written for an empty mask.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

constexpr std::int64_t kSlack = 16;

#if defined(__AVX2__) && !defined(__AVX512BW__)
/// For each eight bits of a mask, the lanes that are chosen, a byte each, the first one lowest.
struct ChosenLanes {
  std::uint64_t of[256]{};
  constexpr ChosenLanes() {
    for (int mask = 0; mask < 256; ++mask) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane)
        if ((mask >> lane & 1) != 0) of[mask] |= static_cast<std::uint64_t>(lane) << (8 * count++);
    }
  }
};
constexpr ChosenLanes kChosenLanes;
#endif

/// `Sixteen` is F32x16 or I32x16, `Element` what it holds.
template <typename Sixteen, typename Element>
CASYNC_INLINE std::int64_t append_lanes(const Mask16& mask, const Sixteen& values, Element* to) {
  const unsigned chosen = bits_of(mask);
  if (chosen == 0) return 0;
#if defined(__AVX512BW__)
  // By way of a register: compressing into memory takes a hundred cycles on Zen 4.
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask.r, __builtin_bit_cast(__m512i, values.r[0])));
  return __builtin_popcount(chosen);
#elif defined(__AVX2__)
  std::int64_t count = 0;
  for (int k = 0; k < kRegisters; ++k) {
    const unsigned eight = chosen >> (8 * k) & 0xffU;
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kChosenLanes.of[eight])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + count),
                        _mm256_permutevar8x32_epi32(__builtin_bit_cast(__m256i, values.r[k]), lanes));
    count += __builtin_popcount(eight);
  }
  return count;
#else
  // Each lane is stored and stays if it is chosen: no branch that could be guessed wrong.
  Element lane[16];
  __builtin_memcpy(lane, &values, sizeof lane);
  std::int64_t count = 0;
  for (int i = 0; i < 16; ++i) {
    to[count] = lane[i];
    count += chosen >> i & 1U;
  }
  return count;
#endif
}

CASYNC_INLINE std::int64_t append(const Mask16& mask, const F32x16& values, float* to) {
  return append_lanes(mask, values, to);
}
CASYNC_INLINE std::int64_t append(const Mask16& mask, const I32x16& values, std::int32_t* to) {
  return append_lanes(mask, values, to);
}
CASYNC_INLINE std::int64_t append(bool chosen, float value, float* to) {
  *to = value;
  return chosen ? 1 : 0;
}
CASYNC_INLINE std::int64_t append(bool chosen, std::int32_t value, std::int32_t* to) {
  *to = value;
  return chosen ? 1 : 0;
}

/// Whether any lane is chosen.
CASYNC_INLINE bool any(const Mask16& mask) { return bits_of(mask) != 0; }

/// What is chosen of a block of 1024, to be appended when all of it was seen: a branch for every sixteen would be
/// guessed wrong as often as some are chosen, and what is being fetched meanwhile would be fetched later.
class Chosen {
 public:
  CASYNC_INLINE void see(std::int64_t from, const Mask16& mask) {
    const auto sixteen = static_cast<std::uint64_t>(from) / 16;
    masks_[sixteen] = bits_of(mask);
    some_ |= std::uint64_t{masks_[sixteen] != 0} << sixteen;
  }
  /// Calls each(from, mask) where any is; then nothing is chosen.
  template <typename Each>
  CASYNC_INLINE void each(const Each& each) {
    for (; some_ != 0; some_ &= some_ - 1) {
      const int sixteen = __builtin_ctzll(some_);
      each(16 * std::int64_t{sixteen}, mask_of(masks_[sixteen]));
    }
  }

 private:
  std::uint64_t some_ = 0;
  std::uint16_t masks_[64];
};

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
