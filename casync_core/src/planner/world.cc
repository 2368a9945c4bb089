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
  std::unique_lock lock(mutex_);
  const auto known = costs_.find({kind, partitions});
  if (known != costs_.end()) return known->second;
  auto counts = counts_.find(kind);
  if (counts == counts_.end()) {
    lock.unlock();
    RouteCounts counted(*make_route(topology), codec, host_of_);
    lock.lock();
    counts = counts_.emplace(kind, std::move(counted)).first;
  }
  const RouteCounts& of_kind = counts->second;
  lock.unlock();
  RouteCosts costs = of_kind.at(partitions);
  lock.lock();
  return costs_.emplace(std::pair{kind, partitions}, std::move(costs)).first->second;
}

}  // namespace casync
