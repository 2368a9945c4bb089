#pragma once

#include <cstdint>
#include <string_view>

#include "casync/planner.hpp"
#include "planner/cost/world.hpp"

namespace casync {

/// What is synchronised, and how.
struct Way {
  std::string_view topology;
  const CodecInfo& codec;
  std::uint32_t partitions = 1;
  double raw = 0;      ///< bytes of the gradient
  double payload = 0;  ///< bytes of its payloads in all, encoded
};

/// Seconds that calls take, of the mean rank and of the busiest, for a partition of `raw` bytes.
Share compute_seconds(const Calls& calls, const CodecCost& codec, const CodecCost& none, double raw);

/// Seconds to synchronise one gradient alone: equations 1 and 2 of the paper (section 3.3), with factors that are
/// counted in the route's own workflows instead of table 3's. `codec` is what the codec's calls cost.
double predict(const World& world, const Way& way, const CostTable& costs, const CodecCost& codec);

}  // namespace casync
