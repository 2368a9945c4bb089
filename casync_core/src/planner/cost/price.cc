// Equations 1 and 2 (paper: section 3.3), in the form
//
//   T(m, K) = alpha * T_send(r*m/K) + beta * T_enc(m/K) + gamma * T_dec(r*m/K)
//
// alpha, beta and gamma are those of the busiest rank, counted layer by layer in the workflows of the route
// (route_costs.hpp): what lies between two sends in a row follows the one and comes before the other. Three departures,
// each for a reason:
//
//   latency   T_send is hops * latency + messages * message + bytes * seconds_per_byte; alpha multiplies bytes only.
//   batches   A batch holds up to one partition per owner. While the link moves one batch, the processor works on the
//             next: T = first batch + (batches - 1) * max(link, processor). Latency is paid once.
//   hosts     Ranks of one host share its link to the others, and what stays on the host does not take it.
#include "planner/cost/price.hpp"

#include <algorithm>

namespace casync {
namespace {

double link_seconds(const RouteTraffic& traffic, const LinkCost& link, double raw, double payload) {
  return traffic.messages.busiest * link.message_s +
         (traffic.payloads.busiest * payload + traffic.raws.busiest * raw) * link.seconds_per_byte;
}

}  // namespace

Share compute_seconds(const Calls& calls, const CodecCost& codec, const CodecCost& none, double raw) {
  return calls.encodes * (codec.encode_fixed_s + codec.encode_s_per_byte * raw) +
         calls.decodes * (codec.decode_fixed_s + codec.decode_s_per_byte * raw) +
         calls.merges * (none.decode_fixed_s + none.decode_s_per_byte * raw);
}

double predict(const World& world, const Way& way, const CostTable& costs, const CodecCost& codec) {
  if (world.members() <= 1 || way.raw <= 0) return 0;
  const std::uint32_t turn = world.costs(way.topology, way.codec, 1).turn;
  const RouteCosts& route = world.costs(way.topology, way.codec, std::min(way.partitions, turn));
  const CodecCost none = costs.of("none");
  const double raw = way.raw / way.partitions;
  const double payload = way.payload / way.partitions;
  double latency_s = 0, link_s = 0;
  double compute_s = compute_seconds(route.last, codec, none, raw).busiest;
  for (const Layer& layer : route.layers) {
    const double inside_s = layer.inside.used() ? costs.intra.latency_s : 0;
    latency_s += layer.between.part * std::max(costs.inter.latency_s, inside_s) + (1 - layer.between.part) * inside_s;
    link_s += std::max(link_seconds(layer.between, costs.inter, raw, payload),
                       link_seconds(layer.inside, costs.intra, raw, payload));
    compute_s += compute_seconds(layer.leading, codec, none, raw).busiest;
  }
  const double batches = ceil_div(way.partitions, turn);
  return latency_s + link_s + compute_s + (batches - 1) * std::max(link_s, compute_s);
}

}  // namespace casync
