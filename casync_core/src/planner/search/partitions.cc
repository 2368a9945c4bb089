#include "planner/search/partitions.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "planner/cost/world.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kMostPartitions = kPartitionLimit / 16;  // each of them takes several of a workflow's slots
constexpr std::uint32_t kEveryUpToMembers = 32;                  // 128 predictions per candidate codec at most

std::uint32_t to_count(double value) {
  return static_cast<std::uint32_t>(std::clamp(value, 1.0, static_cast<double>(kMostPartitions)));
}

}  // namespace

PartitionRange partition_range(const PlannerOptions& options, std::uint32_t members, double raw, double payload,
                               bool whole) {
  PartitionRange range{.members = std::max<std::uint32_t>(members, 1)};
  if (whole) return range;
  range.least = to_count(std::ceil(std::max(payload / options.partition_bytes, raw / options.partition_raw_bytes)));
  if (range.least > range.members) {
    range.least = std::min(ceil_div(range.least, range.members) * range.members, kMostPartitions);
  }
  const std::uint32_t finest = to_count(std::floor(payload / options.least_partition_bytes));
  range.most = std::max(range.least, std::min({finest, 4 * range.members, kMostPartitions}));
  return range;
}

BestPartitions best_partitions(const PartitionRange& range, const std::function<double(std::uint32_t)>& seconds_of) {
  BestPartitions best{range.least, seconds_of(range.least)};
  for (std::uint32_t k = range.least + 1; k <= range.most; ++k) {
    const bool tried = range.members <= kEveryUpToMembers || std::has_single_bit(k) || k % range.members == 0;
    if (!tried) continue;
    const double seconds = seconds_of(k);
    if (seconds < best.seconds) best = {k, seconds};
  }
  return best;
}

std::uint32_t feasible_partitions(const Codec& codec, const Shape& shape, std::uint32_t wanted) {
  const std::int64_t numel = shape.numel();
  for (;;) {
    std::uint32_t made = 0;
    std::int64_t begin = 0;
    for (std::int64_t k = 1; k <= wanted && begin < numel; ++k) {
      const std::int64_t end = k == wanted ? numel : codec.cut(shape, numel * k / wanted);
      if (end > begin) ++made;
      begin = std::max(begin, end);
    }
    if (made >= wanted || made == 0) return wanted;
    wanted = made;
  }
}

}  // namespace casync
