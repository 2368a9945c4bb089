#include "planner/timeline.hpp"

#include <algorithm>
#include <utility>

#include "casync/workflow.hpp"
#include "planner/world.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kPieces = 16;  // of one gradient; each has up to one partition per owner
constexpr std::uint32_t kParts = 8;    // of one piece

/// A gradient's work in one pass through the resources. Seconds of the resources are per part of a piece, except the
/// merge, which needs all parts of its piece.
struct Work {
  double encode_s = 0;
  double transfer_s = 0;  ///< per phase and direction
  double latency_s = 0;   ///< per phase
  double merge_s = 0;     ///< at the owner, between the phases
  double decode_s = 0;    ///< of the result
  std::uint32_t phases = 2;
  std::uint32_t pieces = 1;
  std::uint32_t parts = 1;  ///< per piece
};

/// Every payload that arrives is decoded once, so a rank decodes as many gradients as it receives; it encodes every
/// partition that it sends on or owns once. A merge of raw elements costs as much as the table's `none` says, by
/// default nothing.
Work work_of(const TimelineItem& item, const CostTable& costs, std::span<const std::uint32_t> host_of) {
  const World world(host_of);
  const Statement statement =
      state_costs(item.topology, host_of, item.partitions, item.payload, item.raw, item.identity);
  const bool two_level = item.topology == Topology::two_level;
  const bool direct = item.topology == Topology::direct;
  const LinkCost& link = world.flat_link(costs);
  const double inside =
      two_level && world.most_ranks > 1 ? item.raw : 0;  // of the statement's bytes, through shared memory
  const double between = statement.bytes - inside;
  const double leaders = two_level ? std::min(world.most_ranks, item.partitions) : 1;

  Work work;
  work.phases = direct ? 1 : 2;
  work.pieces = std::clamp(ceil_div(item.partitions, direct ? 1 : world.members), 1U, kPieces);
  work.parts = std::clamp(ceil_div(item.partitions, work.pieces), 1U, kParts);
  const double piece = 1.0 / work.pieces;
  const double part = piece / work.parts;
  work.latency_s = statement.hops * link.latency_s / work.phases;
  work.transfer_s = part / work.phases *
                    (statement.messages * link.message_s +
                     between * link.seconds_per_byte * (two_level ? 1 : world.nic_share(item.topology)) +
                     inside * costs.intra.seconds_per_byte);
  const double received = between / item.payload / leaders;  // gradients
  const double merged = direct ? received + (item.identity ? 0 : 1) : received / 2;
  const double results = direct || item.identity ? 0 : (two_level ? 1 : received / 2);
  const double calls = static_cast<double>(item.partitions) / leaders;
  const auto decode_s = [&](double gradients) {
    return gradients * (calls * item.codec.decode_fixed_s + item.raw * item.codec.decode_s_per_byte);
  };
  if (!item.identity) {
    work.encode_s = part * (calls * item.codec.encode_fixed_s + item.raw / leaders * item.codec.encode_s_per_byte);
  }
  work.merge_s = piece * decode_s(merged);
  work.decode_s = part * decode_s(results);
  return work;
}

}  // namespace

double Timeline::Resource::book(double from, double duration) {
  if (duration <= 0) return from;
  auto at =
      std::lower_bound(busy_.begin(), busy_.end(), from, [](const Busy& busy, double time) { return busy.end < time; });
  // Walk the gaps from `from` on, swallowing every booking that the work reaches.
  Busy grown{from, from};
  auto swallowed = at;
  double cursor = from;
  while (swallowed != busy_.end() && swallowed->begin <= cursor + duration) {
    duration -= std::max(0.0, swallowed->begin - cursor);
    cursor = std::max(cursor, swallowed->end);
    grown.begin = std::min(grown.begin, swallowed->begin);
    ++swallowed;
  }
  grown.end = cursor + duration;
  at = busy_.erase(at, swallowed);
  busy_.insert(at, grown);
  return grown.end;
}

Timeline::Timeline(const CostTable& costs, std::vector<std::uint32_t> host_of)
    : costs_(costs), host_of_(std::move(host_of)) {}

double Timeline::transfer(double from, double duration) {
  return std::max(uplink_.book(from, duration), downlink_.book(from, duration));
}

double Timeline::add(const TimelineItem& item) {
  double end = item.ready_s;
  if (host_of_.size() > 1 && item.raw > 0) {
    const Work work = work_of(item, costs_, host_of_);
    for (std::uint32_t piece = 0; piece < work.pieces; ++piece) {
      double arrived = item.ready_s;
      for (std::uint32_t part = 0; part < work.parts; ++part) {
        const double encoded = processor_.book(item.ready_s, work.encode_s);
        arrived = std::max(arrived, transfer(encoded, work.transfer_s) + work.latency_s);
      }
      const double merged = processor_.book(arrived, work.merge_s);
      end = std::max(end, merged);
      for (std::uint32_t part = 0; work.phases == 2 && part < work.parts; ++part) {
        const double returned = transfer(merged, work.transfer_s) + work.latency_s;
        end = std::max(end, processor_.book(returned, work.decode_s));
      }
    }
  }
  finish_ = std::max(finish_, end);
  return end;
}

}  // namespace casync
