#include "executor/memory/packed_residual.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr float kLargest = 127.0F;
/// A block whose values are all smaller is zeros: distances would not be normal numbers.
constexpr float kSmallest = 0x1.0p-100F;
/// So near to a level, in levels, an element is on it. More than what is lost by `distance_of` and by a division.
constexpr float kNear = 0x1.0p-9F;

std::size_t blocks_of(const Range& range) { return static_cast<std::size_t>((range.size() + kBlock - 1) / kBlock); }

/// A distance of 17 significant bits, the nearest: its product with 127 is exact, and the largest value of a block is
/// so near to the last level that it is on it. So a block that is read and written again has the same distance.
float distance_of(float largest) {
  constexpr std::uint32_t kRest = (1U << 7U) - 1;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(largest / kLargest) + kRest / 2 + 1) & ~kRest);
}

std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ bits >> 30U) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27U) * 0x94d049bb133111ebULL;
  return bits ^ bits >> 31U;
}

/// Numbers from kNear to 1 - kNear, sixteen at a time: xorshift, side by side.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) {
    for (std::size_t i = 0; i < state_.size(); ++i)
      state_[i] = static_cast<std::uint32_t>(mixed(seed + i * 0x9e3779b97f4a7c15ULL)) | 1U;
  }
  const std::array<float, 16>& next() {
    for (std::size_t i = 0; i < state_.size(); ++i) {
      std::uint32_t bits = state_[i];
      bits ^= bits << 13U;
      bits ^= bits >> 17U;
      bits ^= bits << 5U;
      state_[i] = bits;
      draws_[i] = kNear + static_cast<float>(static_cast<std::int32_t>(bits >> 8U)) * (0x1.0p-24F * (1 - 2 * kNear));
    }
    return draws_;
  }

 private:
  std::array<std::uint32_t, 16> state_;
  std::array<float, 16> draws_;
};

/// The largest magnitude; not finite if some value is not. Of bits as integers, which is done with whole vectors.
float largest_of(const float* values, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

/// Returns the distance.
float pack(const float* values, std::int64_t n, std::uint64_t seed, std::int8_t* codes) {
  const float largest = largest_of(values, n);
  const bool finite = std::isfinite(largest);
  if (!finite || largest < kSmallest) {
    std::fill_n(codes, n, finite ? 0 : 1);
    return finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float distance = distance_of(largest);
  Draws draws(seed);
  const auto some = [&](const float* from, std::int64_t count, std::int8_t* to) __attribute__((always_inline)) {
    const std::array<float, 16>& drawn = draws.next();
    for (std::int64_t i = 0; i < count; ++i) {
      const float level = from[i] / distance + drawn[static_cast<std::size_t>(i)] + (kLargest + 1);
      to[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(level) - 128);  // it is positive: rounded down
    }
  };
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) some(values + i, 16, codes + i);
  if (i < n) some(values + i, n - i, codes + i);
  return distance;
}

}  // namespace

PackedResidual::PackedResidual(std::span<const float> values, std::span<const Range> partitions, std::uint64_t seed)
    : codes_(values.size()) {
  std::size_t blocks = 0;
  std::int64_t end = 0;
  for (const Range& range : partitions) {
    CASYNC_CHECK(range.begin == end, "partitions follow each other");
    parts_.push_back({range, blocks});
    blocks += blocks_of(range);
    end = range.end;
  }
  CASYNC_CHECK(end == std::ssize(values), "partitions cover a residual");
  distances_.resize(blocks);
  for (std::size_t p = 0; p < parts_.size(); ++p) write(p, values.data() + parts_[p].elements.begin, seed);
}

bool PackedResidual::is_of(std::span<const Range> partitions) const {
  return std::ranges::equal(parts_, partitions, {}, &Part::elements);
}

void PackedResidual::read(std::size_t partition, float* values) const {
  const auto& [range, first] = parts_[partition];
  const std::int8_t* const codes = codes_.data() + range.begin;
  for (std::int64_t begin = 0; begin < range.size(); begin += kBlock) {
    const float distance = distances_[first + static_cast<std::size_t>(begin / kBlock)];
    for (std::int64_t i = begin; i < std::min(begin + kBlock, range.size()); ++i)
      values[i] = static_cast<float>(codes[i]) * distance;
  }
}

void PackedResidual::write(std::size_t partition, const float* values, std::uint64_t seed) {
  const auto& [range, first] = parts_[partition];
  for (std::int64_t begin = 0; begin < range.size(); begin += kBlock) {
    const std::size_t block = first + static_cast<std::size_t>(begin / kBlock);
    distances_[block] = pack(values + begin, std::min(kBlock, range.size() - begin), mixed(seed + block),
                             codes_.data() + range.begin + begin);
  }
}

FloatArray PackedResidual::values() const {
  FloatArray all(codes_.size());
  for (std::size_t p = 0; p < parts_.size(); ++p) read(p, all.data() + parts_[p].elements.begin);
  return all;
}

}  // namespace casync
