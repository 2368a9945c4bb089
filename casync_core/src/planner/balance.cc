#include "planner/balance.hpp"

#include <algorithm>
#include <utility>

#include "planner/world.hpp"

namespace casync {
namespace {

/// The member that owns the partition at each position of one turn around all owners (plan.hpp, two_level.cc).
/// On hosts of unequal size the true order repeats later than that; the turn is then an approximation.
std::vector<std::uint32_t> turn_of_owners(std::string_view topology, std::span<const std::uint32_t> host_of) {
  std::vector<std::uint32_t> owners;
  if (topology != "two_level") {
    for (std::uint32_t m = 0; m < host_of.size(); ++m) owners.push_back(m);
    return owners;
  }
  std::map<std::uint32_t, std::vector<std::uint32_t>> hosts;
  for (std::uint32_t m = 0; m < host_of.size(); ++m) hosts[host_of[m]].push_back(m);
  const std::uint32_t turns = World(host_of).most_ranks;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    for (const auto& [host, members] : hosts) owners.push_back(members[turn % members.size()]);
  }
  return owners;
}

}  // namespace

Balance deal(std::string_view topology, std::span<const std::uint32_t> host_of, std::uint32_t partitions,
             double partition_bytes, const OwnerLoad& load) {
  Balance best;
  best.load = load;
  best.load.bytes.resize(host_of.size(), 0.0);
  if (topology == "direct" || host_of.empty()) return best;

  const std::vector<std::uint32_t> owners = turn_of_owners(topology, host_of);
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
