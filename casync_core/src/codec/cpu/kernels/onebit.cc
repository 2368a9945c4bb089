#include "codec/cpu/kernels/entries.hpp"
#include "codec/cpu/kernels/fused.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// One group of onebit (Seide et al. 2014, section 3.1; ALGORITHMS: onebit). The first pass forms x, its bits and the
/// two sums; the second forms x again, from memory that is still in the caches, and from it the residual: cheaper than
/// a copy of x, which would push the group out of the first-level cache. Without feedback one pass is all.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

constexpr std::int64_t kSumBlock = 1024;
constexpr std::size_t kHeader = 2 * sizeof(float);

struct Sums {
  float positive = 0;
  float negative = 0;
  std::int64_t positives = 0;
};

CASYNC_INLINE void put_bits(std::byte* to, std::uint16_t bits) { __builtin_memcpy(to, &bits, sizeof bits); }
CASYNC_INLINE std::uint16_t get_bits(const std::byte* from) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, from, sizeof bits);
  return bits;
}
CASYNC_INLINE std::uint16_t get_last_bits(const std::byte* from, std::int64_t count) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, from, count > 8 ? 2 : 1);
  return bits;
}

/// What the first pass reads and writes.
struct Group {
  const float* accumulated;
  const float* residual;
  float mid;
  std::byte* bits;
  std::int64_t ahead;  ///< for fetch_ahead
};

/// The sums and bits of kBlocks whole sum blocks, which are pages of memory, from `begin` on, side by side.
template <bool kFeedback, int kBlocks>
void split_blocks(const Group group, std::int64_t begin, Sums& sums) {
  const F32x16 factor = splat(group.mid);
  F32x16 positive[kBlocks]{};
  F32x16 negative[kBlocks]{};
  std::int64_t positives = 0;
  for (std::int64_t i = begin; i < begin + kSumBlock; i += 16) {
    for (int b = 0; b < kBlocks; ++b) {
      const std::int64_t at = i + b * kSumBlock;
      fetch_ahead(group.accumulated + at, kFeedback ? group.ahead : kBlocks * group.ahead);
      F32x16 x = load(group.accumulated + at);
      if constexpr (kFeedback) {
        fetch_ahead(group.residual + at, group.ahead);
        x = x + load(group.residual + at);
      }
      const F32x16 y = x * factor;
      const Mask16 mask = not_negative(y);
      add_split(mask, y, positive[b], negative[b]);
      const std::uint16_t packed = bits_of(mask);
      positives += __builtin_popcount(packed);
      put_bits(group.bits + at / 8, packed);
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    sums.positive += fold<Add>(positive[b]);
    sums.negative += fold<Add>(negative[b]);
  }
  sums.positives += positives;
}

/// The same for the rest of a group, shorter than a sum block.
template <bool kFeedback>
void split_rest(const Group group, std::int64_t begin, std::int64_t end, Sums& sums) {
  const F32x16 factor = splat(group.mid);
  F32x16 positive{};
  F32x16 negative{};
  const auto step = [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
    fetch_ahead(group.accumulated + i, group.ahead);
    F32x16 x = load_first(group.accumulated + i, count);
    if constexpr (kFeedback) {
      fetch_ahead(group.residual + i, group.ahead);
      x = x + load_first(group.residual + i, count);
    }
    const F32x16 y = x * factor;
    const Mask16 mask = not_negative(y);  // the padding is zero: it adds nothing, and its bits are cleared below
    add_split(mask, y, positive, negative);
    const auto packed = static_cast<std::uint16_t>(bits_of(mask) & ((1U << count) - 1U));
    sums.positives += __builtin_popcount(packed);
    __builtin_memcpy(group.bits + i / 8, &packed, count > 8 ? 2 : 1);
  };
  std::int64_t i = begin;
  for (; i + 16 <= end; i += 16) step(i, 16);
  if (i < end) step(i, end - i);
  sums.positive += fold<Add>(positive);
  sums.negative += fold<Add>(negative);
}

template <bool kFeedback>
Sums split(const Group& group, std::int64_t n) {
  Sums sums;
  std::int64_t begin = 0;
  if (group.ahead > 0)  // pages side by side
    for (; begin + 4 * kSumBlock <= n; begin += 4 * kSumBlock) split_blocks<kFeedback, 4>(group, begin, sums);
  for (; begin + kSumBlock <= n; begin += kSumBlock) split_blocks<kFeedback, 1>(group, begin, sums);
  if (begin < n) split_rest<kFeedback>(group, begin, n, sums);
  return sums;
}

/// residual = x - (bit ? positive : negative), x = accumulated + residual
void leave_residual(const float* accumulated, const std::byte* bits, float positive, float negative, float* residual,
                    std::int64_t n) {
  const F32x16 yes = splat(positive);
  const F32x16 no = splat(negative);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F32x16 x = load(accumulated + i) + load(residual + i);
    store(residual + i, x - select(mask_of(get_bits(bits + i / 8)), yes, no));
  }
  if (const std::int64_t rest = n - i; rest > 0) {
    const F32x16 x = load_first(accumulated + i, rest) + load_first(residual + i, rest);
    store_first(residual + i, x - select(mask_of(get_last_bits(bits + i / 8, rest)), yes, no), rest);
  }
}

CASYNC_INLINE bool finite(float value) { return value - value == 0.0F; }

/// Decodes one group's payload.
class BitPayload {
 public:
  CASYNC_INLINE BitPayload(const std::byte* payload, std::int64_t /*ahead*/) : bits_(payload + kHeader) {
    __builtin_memcpy(mean_, payload, kHeader);
    yes_ = splat(mean_[0]);
    no_ = splat(mean_[1]);
  }
  CASYNC_INLINE F32x16 at(std::int64_t i) const { return select(mask_of(get_bits(bits_ + i / 8)), yes_, no_); }
  CASYNC_INLINE float one(std::int64_t i) const {
    return (static_cast<unsigned>(bits_[i / 8]) >> (i % 8) & 1U) != 0 ? mean_[0] : mean_[1];
  }

 private:
  const std::byte* bits_;
  float mean_[2];
  F32x16 yes_;
  F32x16 no_;
};

}  // namespace

bool onebit_encode(const float* accumulated, float* residual, float mid, std::int64_t n, std::byte* payload) {
  std::byte* const bits = payload + kHeader;
  const std::int64_t ahead = residual != nullptr ? kTwoStreams : kOneStream;
  const Group group{accumulated, residual, mid, bits, pages_side_by_side() ? ahead : 0};
  const Sums sums = residual != nullptr ? split<true>(group, n) : split<false>(group, n);
  const std::int64_t negatives = n - sums.positives;
  float mean[2]{sums.positives > 0 ? sums.positive / static_cast<float>(sums.positives) : 0.0F,
                negatives > 0 ? sums.negative / static_cast<float>(negatives) : 0.0F};
  // A NaN or -Inf fell into the negative sum, +Inf into the positive one; so does a sum that leaves float32's range
  // (R7).
  const bool nonfinite = !finite(mean[0]) || !finite(mean[1]);
  if (nonfinite) mean[0] = mean[1] = __builtin_nanf("");
  __builtin_memcpy(payload, mean, kHeader);
  if (residual != nullptr && !nonfinite) leave_residual(accumulated, bits, mean[0] / mid, mean[1] / mid, residual, n);
  return nonfinite;
}

bool onebit_merge(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<BitPayload>(sources, count, out, n, streaming);
}

}  // namespace casync::codec::CASYNC_KERNEL_ISA
