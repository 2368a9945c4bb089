#include "planner/search/assign_owners.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace casync {
Balance deal(std::span<const Rank> owners, std::uint32_t members, std::uint32_t partitions, double partition_bytes,
             const OwnerLoad& load) {
  Balance best;
  best.load = load;
  best.load.bytes.resize(members, 0.0);
  if (owners.empty()) return best;

  const auto positions = static_cast<std::uint32_t>(owners.size());
  // Whole turns give every position the same, wherever they start; what is left over goes to neighbouring positions.
  for (const std::uint32_t owner : owners) best.load.bytes[owner] += partitions / positions * partition_bytes;
  const std::uint32_t left = partitions % positions;
  std::pair<double, double> least{std::numeric_limits<double>::infinity(), 0};
  for (std::uint32_t start = 0; left > 0 && start < positions; ++start) {
    std::pair<double, double> cost{0, 0};
    for (std::uint32_t p = 0; p < left; ++p) {
      const double owned = best.load.bytes[owners[(start + p) % positions]];
      cost = {std::max(cost.first, owned), cost.second + owned};
    }
    if (cost < least) {
      least = cost;
      best.first_owner = start;
    }
  }
  for (std::uint32_t p = 0; p < left; ++p)
    best.load.bytes[owners[(best.first_owner + p) % positions]] += partition_bytes;
  return best;
}

}  // namespace casync
