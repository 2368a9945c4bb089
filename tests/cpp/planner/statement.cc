#include "planner/statement.hpp"

#include <algorithm>
#include <map>

namespace casync::test {
namespace {

/// Partitions that the busiest of `owners` owns when K are dealt in turn.
double busiest_share(std::uint32_t partitions, std::uint32_t owners) {
  return static_cast<double>((partitions + owners - 1) / owners) / partitions;
}

}  // namespace

Statement state_costs(std::string_view topology, std::span<const std::uint32_t> host_of, std::uint32_t partitions,
                      double payload, double raw, bool identity) {
  const auto n = static_cast<std::uint32_t>(host_of.size());
  if (n <= 1) return {};
  const std::uint32_t k = std::max<std::uint32_t>(partitions, 1);
  const std::uint32_t coded = identity ? 0 : 1;
  std::map<std::uint32_t, std::uint32_t> ranks_of;
  for (const std::uint32_t host : host_of) ++ranks_of[host];
  const auto hosts = static_cast<std::uint32_t>(ranks_of.size());
  {
    if (topology == "direct") {
      // A member decodes its own payload too.
      return {1, (n - 1) * payload, k * (n - 1), coded, coded * n};
    }
    if (topology == "ps") {
      // The busiest member owns ceil(K/N) partitions: those it receives N-1 times, and the others it sends once.
      const double own = busiest_share(k, n);
      const std::uint32_t owned = (k + n - 1) / n;
      return {2, payload * (own * (n - 1) + (1 - own)), owned * (n - 1) + (k - owned), 2 * coded, coded * n};
    }
    if (topology == "ring") {
      // A member passes every partition on twice, but once what it owns and once what its successor owns. The busiest
      // and its successor own the fewest: K/N each, unless only one member owns so few.
      const std::uint32_t spared = 2 * (k / n) + (k % n == n - 1 ? 1 : 0);
      return {2 * (n - 1), payload * (2.0 * k - spared) / k, 2 * k - spared, coded * n, coded * n};
    }
    if (topology == "two_level") {
      const double own = hosts > 1 ? busiest_share(k, hosts) : 0;
      const double between = hosts > 1 ? payload * (own * (hosts - 1) + (1 - own)) : 0;
      std::uint32_t most = 0;
      for (const auto& [host, ranks] : ranks_of) most = std::max(most, ranks);
      const std::uint32_t inside = most > 1 ? 2 : 0;
      std::uint32_t messages = 0;
      for (const auto& [host, ranks] : ranks_of) {
        // The ranks of a host take turns at leading `hosts` partitions each, of which the host owns one.
        const std::uint32_t owned = ((k + hosts - 1) / hosts + ranks - 1) / ranks;
        const std::uint32_t led = std::min(k, owned * hosts);
        const std::uint32_t across = hosts > 1 ? owned * (hosts - 1) + (led - std::min(led, owned)) : 0;
        messages = std::max(messages, across + led * (ranks - 1) + (k - led));
      }
      return {inside + (hosts > 1 ? 2 : 0), between + (most > 1 ? raw : 0), messages, 2 * coded, coded * hosts};
    }
  }
  return {};
}

}  // namespace casync::test
