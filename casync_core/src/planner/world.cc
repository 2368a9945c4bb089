#include "planner/world.hpp"

#include "casync/error.hpp"

namespace casync {

World::World(std::vector<std::uint32_t> host_of) : host_of_(std::move(host_of)) {
  std::map<std::uint32_t, std::uint32_t> ranks_of;
  for (const std::uint32_t host : host_of_) most_ranks_ = std::max(most_ranks_, ++ranks_of[host]);
  hosts_ = static_cast<std::uint32_t>(ranks_of.size());
}

const RouteCosts& World::costs(std::string_view topology, const CodecInfo& codec, std::uint32_t partitions) const {
  CASYNC_CHECK(partitions >= 1);
  const Kind kind{std::string(topology), codec.identity, codec.cast.has_value(), codec.averages, codec.rounds};
  const auto known = costs_.find({kind, partitions});
  if (known != costs_.end()) return known->second;
  auto counts = counts_.find(kind);
  if (counts == counts_.end())
    counts = counts_.emplace(kind, RouteCounts(*make_route(topology), codec, host_of_)).first;
  return costs_.emplace(std::pair{kind, partitions}, counts->second.at(partitions)).first->second;
}

}  // namespace casync
