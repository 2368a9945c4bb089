#pragma once

#include <span>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// The ranks of each host, in ascending order, and hosts in the order of their indices.
using Hosts = std::vector<std::vector<Rank>>;
Hosts ranks_by_host(std::span<const std::uint32_t> host_of);

/// Owners of routes in two levels: position `turn * hosts + h` belongs to the rank of host h whose turn it is to lead.
/// There are as many turns as the largest host has ranks.
std::vector<Rank> owners_by_turns(const Hosts& hosts);

}  // namespace casync
