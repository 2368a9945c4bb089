#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "casync/planner.hpp"
#include "planner/cost/route_costs.hpp"

namespace casync {

/// How the members lie on hosts, and what the routes between them cost, which is counted once. For one thread. A
/// copy knows what was counted, and costs next to nothing; so another thread counts with a copy.
class World {
 public:
  explicit World(std::vector<std::uint32_t> host_of);

  const std::vector<std::uint32_t>& host_of() const { return host_of_; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(host_of_.size()); }
  std::uint32_t hosts() const { return hosts_; }
  std::uint32_t most_ranks() const { return most_ranks_; }  ///< on one host

  /// The link that bounds what goes from every rank to every other.
  const LinkCost& flat_link(const CostTable& costs) const { return hosts_ > 1 ? costs.inter : costs.intra; }

  /// Of a gradient in so many partitions. `topology` carries the codec.
  const RouteCosts& costs(std::string_view topology, const CodecInfo& codec, std::uint32_t partitions) const;

  /// Knows from now on what `copy` has counted.
  void learn(const World& copy);

 private:
  /// Codecs of one kind go one way.
  using Kind = std::tuple<std::string, bool, bool, std::vector<Round>>;

  std::vector<std::uint32_t> host_of_;
  std::uint32_t hosts_ = 0;
  std::uint32_t most_ranks_ = 0;
  mutable std::map<Kind, std::shared_ptr<const RouteCounts>> counts_;
  mutable std::map<std::pair<Kind, std::uint32_t>, std::shared_ptr<const RouteCosts>> costs_;
};

/// ceil(a / b)
constexpr std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

}  // namespace casync
