#pragma once

#include <cstdint>
#include <functional>

#include "casync/codec.hpp"
#include "casync/planner.hpp"

namespace casync {

/// What bounds the number of partitions K of one gradient.
struct PartitionRange {
  std::uint32_t members = 1;
  std::uint32_t least = 1;  ///< so that no partition exceeds the options' upper limits; whole rounds of owners beyond N
  std::uint32_t most = 1;   ///< so that none falls under the lower limit; at least `least`, else at most 4N
};

/// Range for `raw` bytes whose payloads have `payload` bytes; `whole` codecs are never cut.
PartitionRange partition_range(const PlannerOptions& options, std::uint32_t members, double raw, double payload,
                               bool whole);

struct BestPartitions {
  std::uint32_t partitions = 1;
  double seconds = 0;
};

/// The K in `range` for which `seconds_of(K)` is least; the lowest among equals. Tries every K of worlds up to 32
/// members, in larger ones powers of two and multiples of N.
BestPartitions best_partitions(const PartitionRange& range, const std::function<double(std::uint32_t)>& seconds_of);

/// A K up to `wanted` that leaves no partition empty: workflows cut at multiples of K-ths, moved down to the codec's
/// boundaries, and make fewer partitions where the gradient has too few of them.
std::uint32_t feasible_partitions(const Codec& codec, const Shape& shape, std::uint32_t wanted);

}  // namespace casync
