#include "planner/cost/world.hpp"

#include "casync/error.hpp"

namespace casync {

World::World(std::vector<std::uint32_t> host_of) : host_of_(std::move(host_of)) {
  std::map<std::uint32_t, std::uint32_t> ranks_of;
  for (const std::uint32_t host : host_of_) most_ranks_ = std::max(most_ranks_, ++ranks_of[host]);
  hosts_ = static_cast<std::uint32_t>(ranks_of.size());
}

const RouteCosts& World::costs(std::string_view topology, const CodecInfo& codec, std::uint32_t partitions) const {
  CASYNC_CHECK(partitions >= 1);
  const Kind kind{std::string(topology), codec.identity, codec.cast.has_value(), codec.rounds};
  std::shared_ptr<const RouteCosts>& costs = costs_[{kind, partitions}];
  if (costs == nullptr) {
    std::shared_ptr<const RouteCounts>& counts = counts_[kind];
    if (counts == nullptr) counts = std::make_shared<RouteCounts>(*make_route(topology), codec, host_of_);
    costs = std::make_shared<RouteCosts>(counts->at(partitions));
  }
  return *costs;
}

void World::learn(const World& copy) {
  counts_.insert(copy.counts_.begin(), copy.counts_.end());
  costs_.insert(copy.costs_.begin(), copy.costs_.end());
}

}  // namespace casync
