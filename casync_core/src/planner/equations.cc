// Equations 1 and 2 (paper: section 3.3) with table 3's factors.
//
//   T(m, K) = alpha * T_send(r*m/K) + beta * T_enc(m/K) + gamma * T_dec(r*m/K)
//
// Equation 1 is the same with r = 1 and beta = gamma = 0. Three departures, each for a reason:
//
//   latency   T_send is hops * latency + messages * message + bytes * seconds_per_byte; alpha multiplies bytes only.
//   batches   K beyond N: a batch holds up to N partitions, one per owner. While the link moves one batch, the
//             processor works on the next: T = first batch + (batches - 1) * max(link, processor).
//             Latency is paid once.
//   NIC       Ranks of one host share it: a flat topology is charged for all of them.
#include <algorithm>

#include "casync/error.hpp"
#include "planner/statement.hpp"
#include "planner/world.hpp"

namespace casync {
namespace {

/// What one batch costs, per resource.
struct Batch {
  double latency_s = 0;
  double link_s = 0;
  double compute_s = 0;
};

double pipelined(const Batch& batch, std::uint32_t batches) {
  return batch.latency_s + batch.link_s + batch.compute_s + (batches - 1) * std::max(batch.link_s, batch.compute_s);
}

double compute_seconds(const CodecCost& codec, double beta, double gamma, double raw_part) {
  return beta * (codec.encode_fixed_s + codec.encode_s_per_byte * raw_part) +
         gamma * (codec.decode_fixed_s + codec.decode_s_per_byte * raw_part);
}

/// PS and ring: the paper's equations. A batch is up to N partitions.
double price_flat(const Way& route, const World& world, const CostTable& costs, const CodecCost& codec, bool identity,
                  bool mergeable, double raw, double payload) {
  const std::uint32_t n = world.members;
  const std::uint32_t k = route.partitions;
  const std::uint32_t in_batch = std::min(k, n);
  const Factors factors = colocated(route.topology, n, in_batch, mergeable);
  const Statement statement = state_costs(route.topology, route.host_of, in_batch, payload, raw, identity);
  const LinkCost& link = world.flat_link(costs);
  Batch batch;
  batch.latency_s = statement.hops * link.latency_s;
  batch.link_s = statement.messages * link.message_s +
                 factors.alpha * payload / k * link.seconds_per_byte * world.nic_share(route.topology);
  if (!identity) batch.compute_s = compute_seconds(codec, factors.beta, factors.gamma, raw / k);
  return pipelined(batch, ceil_div(k, n));
}

/// direct: a batch is one partition. Each member sends it N-1 times, encodes it once and decodes all N payloads.
double price_direct(const Way& route, const World& world, const CostTable& costs, const CodecCost& codec, bool identity,
                    double raw, double payload) {
  const Statement statement = state_costs(route.topology, route.host_of, 1, payload, raw, identity);
  const LinkCost& link = world.flat_link(costs);
  const std::uint32_t k = route.partitions;
  Batch batch;
  batch.latency_s = statement.hops * link.latency_s;
  batch.link_s = statement.messages * link.message_s +
                 statement.bytes / k * link.seconds_per_byte * world.nic_share(route.topology);
  if (!identity) batch.compute_s = compute_seconds(codec, 1, world.members, raw / k);
  return pipelined(batch, k);
}

/// two_level: equation 2 between the hosts, N being their number; the L ranks of a host lead different partitions, so
/// they share the processor's part but not the NIC. Before and after it the raw partitions cross the host's memory to
/// their leaders, and the results back.
double price_two_level(const Way& route, const World& world, const CostTable& costs, const CodecCost& codec,
                       bool identity, bool mergeable, double raw, double payload) {
  const std::uint32_t k = route.partitions;
  const std::uint32_t in_batch = std::min(k, world.members);
  const std::uint32_t owned = ceil_div(in_batch, world.hosts);  // by the busiest host
  Batch batch;
  if (world.most_ranks > 1) {
    const double share = static_cast<double>(in_batch) / k;
    batch.latency_s += 2 * costs.intra.latency_s;
    batch.link_s += 2 * in_batch * costs.intra.message_s + share * (raw + payload) * costs.intra.seconds_per_byte;
  }
  if (world.hosts > 1) {
    const std::uint32_t busiest = std::min(in_batch, world.hosts);
    const Statement statement = state_costs(route.topology, route.host_of, in_batch, payload, raw, identity);
    const double inner_hops = world.most_ranks > 1 ? 2 : 0;
    batch.latency_s += (statement.hops - inner_hops) * costs.inter.latency_s;
    batch.link_s += (owned * (world.hosts - 1) + (busiest - 1)) * costs.inter.message_s +
                    2.0 * (world.hosts - 1) * owned * payload / k * costs.inter.seconds_per_byte;
  }
  if (!identity) {
    const double beta = mergeable ? 1 : ceil_div(in_batch, world.most_ranks);
    const double gamma = mergeable ? 1 : world.hosts;
    batch.compute_s = compute_seconds(codec, beta, gamma, raw / k);
  }
  return pipelined(batch, ceil_div(k, world.members));
}

double price(const Way& route, const CostTable& costs, const CodecCost& codec, bool identity, bool mergeable,
             double raw, double payload) {
  const World world(route.host_of);
  if (world.members <= 1 || raw <= 0) return 0;
  CASYNC_CHECK(route.partitions >= 1);
  if (route.topology == "direct") return price_direct(route, world, costs, codec, identity, raw, payload);
  if (route.topology == "two_level")
    return price_two_level(route, world, costs, codec, identity, mergeable, raw, payload);
  return price_flat(route, world, costs, codec, identity, mergeable, raw, payload);
}

}  // namespace

Factors table3(std::string_view topology, std::uint32_t members, std::uint32_t partitions, bool mergeable) {
  CASYNC_CHECK(topology == "ps" || topology == "ring", topology, " is not in table 3");
  const double n = members;
  if (topology == "ring") return mergeable ? Factors{2 * (n - 1), 1, 1} : Factors{2 * (n - 1), n, n};
  return mergeable ? Factors{2 * n, 1, 1} : Factors{2 * n, static_cast<double>(partitions) + 1, n + 1};
}

Factors colocated(std::string_view topology, std::uint32_t members, std::uint32_t partitions, bool mergeable) {
  Factors factors = table3(topology, members, partitions, mergeable);
  if (topology == "ps") {
    factors.alpha -= 2;
    if (!mergeable) {
      factors.beta -= 1;
      factors.gamma -= 1;
    }
  }
  return factors;
}

double predict_original(const Way& route, const CostTable& costs, double raw) {
  return price(route, costs, {}, true, true, raw, raw);
}

double predict_compressed(const Way& route, const CostTable& costs, const CodecCost& codec, bool mergeable, double raw,
                          double payload) {
  return price(route, costs, codec, false, mergeable, raw, payload);
}

}  // namespace casync
