#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>

#include "casync/planner.hpp"

namespace casync {

/// How the members lie on hosts, as the cost model sees it.
struct World {
  explicit World(std::span<const std::uint32_t> host_of) : members(static_cast<std::uint32_t>(host_of.size())) {
    std::map<std::uint32_t, std::uint32_t> ranks_of;
    for (const std::uint32_t host : host_of) most_ranks = std::max(most_ranks, ++ranks_of[host]);
    hosts = static_cast<std::uint32_t>(ranks_of.size());
  }

  /// The link that bounds a flat topology.
  const LinkCost& flat_link(const CostTable& costs) const { return hosts > 1 ? costs.inter : costs.intra; }

  /// Bytes at a host's NIC per byte that one of its ranks sends. In a ring only one rank of a host has a neighbour
  /// elsewhere (ranks fill the hosts in order); in the other flat topologies all ranks send to all, and those on the
  /// host need no NIC.
  double nic_share(std::string_view topology) const {
    if (hosts <= 1 || most_ranks <= 1 || topology == "ring") return 1;
    return static_cast<double>(most_ranks) * (members - most_ranks) / (members - 1);
  }

  std::uint32_t members = 0;
  std::uint32_t hosts = 0;
  std::uint32_t most_ranks = 0;  ///< on one host
};

/// ceil(a / b)
constexpr std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

}  // namespace casync
