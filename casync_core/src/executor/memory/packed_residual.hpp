#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "casync/staggered.hpp"
#include "casync/types.hpp"

namespace casync {

/// Another one for each gradient, step and rank.
inline std::uint64_t seed_of(std::uint64_t name_hash, std::uint32_t step, Rank rank) {
  return name_hash ^ (static_cast<std::uint64_t>(step) << 32U | static_cast<std::uint64_t>(rank));
}

/// A residual in 8 bits: each block of 256 elements has a distance of two levels, and each element the number of its
/// level, from -127 to 127. Blocks begin anew with each partition, so that two threads never write to one.
///
/// An element is rounded to the level above or below it, by a random number and how far it is from them. So what
/// rounding loses is nothing on average, and a value that grows by less than a level in each step does not wait for
/// ever. (To the nearest level it would: each step would round it back to where it was.) What lies on levels stays
/// exactly as it is when it is written again.
class PackedResidual {
 public:
  /// `partitions` follow each other and cover the values. `seed`: of `seed_of`.
  PackedResidual(std::span<const float> values, std::span<const Range> partitions, std::uint64_t seed);

  /// Whether it is that of these partitions.
  bool is_of(std::span<const Range> partitions) const;
  std::int64_t size(std::size_t partition) const { return parts_[partition].elements.size(); }
  void read(std::size_t partition, float* values) const;
  void write(std::size_t partition, const float* values, std::uint64_t seed);
  FloatArray values() const;
  std::size_t bytes() const { return codes_.size() + distances_.size() * sizeof(float); }

 private:
  struct Part {
    Range elements;
    std::size_t first_block = 0;
  };
  std::vector<Part> parts_;
  std::vector<std::int8_t> codes_;
  std::vector<float> distances_;  // of each block
};

}  // namespace casync
