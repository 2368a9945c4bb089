#include "routes/hosts.hpp"

#include <algorithm>
#include <map>

namespace casync {

Hosts ranks_by_host(std::span<const std::uint32_t> host_of) {
  std::map<std::uint32_t, std::vector<Rank>> by_host;
  for (Rank rank = 0; rank < host_of.size(); ++rank) by_host[host_of[rank]].push_back(rank);
  Hosts hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  return hosts;
}

std::vector<Rank> owners_by_turns(const Hosts& hosts) {
  std::size_t turns = 0;
  for (const auto& ranks : hosts) turns = std::max(turns, ranks.size());
  std::vector<Rank> owners;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (const auto& ranks : hosts) owners.push_back(ranks[turn % ranks.size()]);
  }
  return owners;
}

}  // namespace casync
