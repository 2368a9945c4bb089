#include "planner/timeline.hpp"

#include <algorithm>
#include <cmath>

namespace casync {
namespace {

constexpr std::uint32_t kPieces = 16;          // of one gradient
constexpr std::uint32_t kParts = 8;            // of one piece, where two resources work on it at a time
constexpr double kInHeadBytes = kInlineBytes;  // messages up to this travel inside a head
constexpr double kStartHops = 2;               // of an operation: ready to the root, start from it
constexpr double kWindowHops = 1;  // of one that sends at once: the receiver's window; else encoding hides it

/// The partitions of one gradient, dealt in turn to `owners`: what one of them owns.
struct Owned {
  Owned(double partitions, double owners) : mean(partitions / owners), most(std::ceil(mean)), least(std::floor(mean)) {}
  double mean;
  double most;
  double least;
};

/// A message's way besides its bytes: a body follows its announcement.
double hop_seconds(const LinkCost& link, double bytes) { return link.latency_s * (bytes > kInHeadBytes ? 2 : 1); }

}  // namespace

/// A gradient: seconds of one partition, and how many there are.
struct Timeline::Gradient {
  double ready_s = 0;           ///< when it can begin
  double encode_s = 0;          ///< one call
  double merge_s = 0;           ///< one contribution
  double decode_s = 0;          ///< the result
  double send_s = 0;            ///< to a rank of a flat topology; two_level: to another host
  double hop_s = 0;             ///< from the end of that to the receiver's next task
  double raw_inside_s = 0;      ///< raw elements to a rank of this host
  double payload_inside_s = 0;  ///< a payload to a rank of this host
  double hop_inside_s = 0;
  double partitions = 1;
  std::uint32_t pieces = 1;

  bool encoded() const { return encode_s > 0; }
  /// Messages of several senders meet at a receiver as chance has it: the last one waits for half of the others.
  double meeting_s(double senders) const { return senders / 2 * send_s; }
  /// Of a piece: so many times `seconds` on the mean rank, and on the busiest.
  Share share(double mean, double busiest, double seconds) const {
    return Share{mean * seconds, std::max(mean, busiest) * seconds} / pieces;
  }
  std::uint32_t parts() const { return std::clamp(static_cast<std::uint32_t>(partitions / pieces), 1U, kParts); }
};

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

Timeline::Timeline(const CostTable& costs, const std::vector<std::uint32_t>& host_of)
    : costs_(costs), world_(host_of) {}

double Timeline::take(Resource& resource, double from, const Share& share) {
  return std::max(resource.book(from, share.mean), from + share.busiest);
}

double Timeline::relay(double from, Resource& first, const Share& first_share, Resource& second,
                       const Share& second_share, std::uint32_t parts, double last) {
  double done = from;
  double end = from;
  for (std::uint32_t part = 0; part < parts; ++part) {
    done = take(first, done, first_share / parts);
    end = take(second, std::max(done, end), second_share / parts);
  }
  return std::max(end, done + last);
}

// In what follows every piece takes a step before any takes the next: the engine, too, has all partitions of a gradient
// under way at a time.

/// A rank encodes all partitions, sends each to all others, and merges all payloads of each, its own too.
double Timeline::direct(const Gradient& g) {
  const double k = g.partitions;
  const double others = world_.members - 1;
  const double merges = g.encoded() ? others + 1 : others;
  std::vector<double> at(g.pieces, g.ready_s);
  for (double& piece : at) {
    piece = g.hop_s + g.meeting_s(others) +
            relay(piece, processor_, g.share(k, k, g.encode_s), flat_link(), g.share(k * others, k * others, g.send_s),
                  g.parts());
  }
  for (double& piece : at) piece = take(processor_, piece, g.share(k * merges, k * merges, g.merge_s));
  return *std::max_element(at.begin(), at.end());
}

/// A rank encodes what others own; an owner merges, encodes once more, and sends the result to all others.
///
/// Ranks encode in one order, so all payloads of a partition meet at its owner, the last one's too.
double Timeline::parameter_server(const Gradient& g) {
  const double k = g.partitions;
  const double others = world_.members - 1;
  const Owned owned(k, world_.members);
  const Share transfer = g.share(owned.mean * others, std::max(owned.most * others, k - owned.least), g.send_s);
  std::vector<double> at(g.pieces, g.ready_s);
  for (double& piece : at) {
    piece = g.hop_s + relay(piece, processor_, g.share(k - owned.mean, k - owned.least, g.encode_s), flat_link(),
                            transfer, g.parts(), g.encoded() ? others * g.send_s : 0);
  }
  for (double& piece : at)
    piece = take(processor_, piece, g.share(owned.mean, owned.most, others * g.merge_s + g.encode_s));
  for (double& piece : at) {
    piece = g.hop_s + g.meeting_s(others) +
            relay(piece, flat_link(), transfer, processor_, g.share(k - owned.mean, k - owned.least, g.decode_s),
                  g.parts());
  }
  return *std::max_element(at.begin(), at.end());
}

/// N-1 hops with a merge after each, then N-1 on which the result is passed on and decoded beside. Of the L ranks of a
/// host one has its neighbour on another, so a piece of a partition per host crosses the NIC on every L-th hop.
double Timeline::ring(const Gradient& g) {
  const Owned owned(g.partitions, world_.members);
  const Owned by_host(g.partitions, world_.hosts);
  const Share across = g.share(by_host.mean, by_host.most, g.send_s);
  const Share inside = g.share(owned.mean, owned.most, g.payload_inside_s);
  const auto compute = [&](double seconds) { return g.share(owned.mean, owned.most, seconds); };
  const auto pass = [&](std::uint32_t piece, std::uint32_t hop, double from) {
    return world_.hosts > 1 && (piece + hop) % world_.most_ranks == 0 ? g.hop_s + take(nic_, from, across)
                                                                      : g.hop_inside_s + take(inside_, from, inside);
  };
  double end = g.ready_s;
  std::vector<double> at(g.pieces, g.ready_s);
  for (double& piece : at) piece = take(processor_, piece, compute(g.encode_s));
  for (std::uint32_t hop = 1; hop < world_.members; ++hop) {
    for (std::uint32_t piece = 0; piece < g.pieces; ++piece)
      at[piece] = take(processor_, pass(piece, hop, at[piece]), compute(g.merge_s + g.encode_s));
  }
  for (std::uint32_t hop = world_.members; hop < 2 * world_.members - 1; ++hop) {
    for (std::uint32_t piece = 0; piece < g.pieces; ++piece) {
      at[piece] = pass(piece, hop, at[piece]);
      end = std::max(end, take(processor_, at[piece], compute(g.decode_s)));
    }
  }
  return end;
}

/// The ranks of a host hand their raw elements to the partition's leader; leaders do what parameter_server does, hosts
/// being its members; the result goes from a leader to its ranks.
double Timeline::two_level(const Gradient& g) {
  const double k = g.partitions;
  const double hosts = world_.hosts;
  const double ranks = world_.most_ranks;
  const Owned by_host(k, hosts);
  const Owned by_rank(k, hosts * ranks);
  const double led = k / ranks;
  const double most_led = std::min(k, by_rank.most * hosts);
  const double least_led = std::max(0.0, k - (ranks - 1) * most_led);
  const Share gather = g.share(led * (ranks - 1), std::max(most_led * (ranks - 1), k - least_led), g.raw_inside_s);
  const Share encode = g.share(led - by_rank.mean, most_led - by_rank.least, g.encode_s);
  const Share transfer =
      g.share(by_host.mean * (hosts - 1), std::max(by_host.most * (hosts - 1), k - by_host.least), g.send_s);
  const Share merge = g.share(by_rank.mean, by_rank.most, (hosts - 1) * g.merge_s + g.encode_s);
  const Share scatter = g.share(led * (ranks - 1), most_led * (ranks - 1), g.payload_inside_s);
  const Share decode = g.share(k - by_rank.mean, k - by_rank.least, g.decode_s);

  std::vector<double> at(g.pieces, g.ready_s);
  if (ranks > 1) {
    for (double& piece : at) piece = g.hop_inside_s + take(inside_, piece, gather);
  }
  if (hosts > 1) {
    const double last = g.encoded() ? (hosts - 1) * g.send_s : 0;
    for (double& piece : at) piece = g.hop_s + relay(piece, processor_, encode, nic_, transfer, g.parts(), last);
  }
  for (double& piece : at) piece = take(processor_, piece, merge);
  if (hosts > 1) {
    for (double& piece : at) piece = g.hop_s + g.meeting_s(hosts - 1) + take(nic_, piece, transfer);
  }
  if (ranks > 1) {
    for (double& piece : at) piece = g.hop_inside_s + take(inside_, piece, scatter);
  }
  for (double& piece : at) piece = take(processor_, piece, decode);
  return *std::max_element(at.begin(), at.end());
}

Timeline::Gradient Timeline::describe(const TimelineItem& item) const {
  const double raw = item.raw / item.partitions;
  const double payload = item.payload / item.partitions;
  const bool flat = item.topology != "two_level";
  const LinkCost& link = world_.flat_link(costs_);
  const double crowd = flat ? world_.nic_share(item.topology) : 1;

  Gradient gradient;
  gradient.merge_s = item.codec.decode_fixed_s + raw * item.codec.decode_s_per_byte;
  if (!item.identity) {
    gradient.encode_s = item.codec.encode_fixed_s + raw * item.codec.encode_s_per_byte;
    gradient.decode_s = gradient.merge_s;
  }
  gradient.send_s = link.message_s + payload * link.seconds_per_byte * crowd;
  gradient.hop_s = hop_seconds(link, payload);
  gradient.raw_inside_s = costs_.intra.message_s + raw * costs_.intra.seconds_per_byte;
  gradient.payload_inside_s = costs_.intra.message_s + payload * costs_.intra.seconds_per_byte;
  gradient.hop_inside_s = hop_seconds(costs_.intra, flat ? payload : raw);
  gradient.partitions = item.partitions;

  const bool from_all = item.topology == "direct" || item.topology == "ps";
  const bool at_once = from_all && item.identity && payload <= kInHeadBytes;
  const double hops = at_once ? 0 : item.identity ? kStartHops + kWindowHops : kStartHops;
  gradient.ready_s = item.ready_s + hops * link.latency_s;

  std::uint32_t per_piece = 1;  // partitions, so that every rank has its share of each piece
  if (item.topology == "ring") per_piece = world_.hosts;
  if (item.topology == "ps" || !flat) per_piece = world_.members;
  gradient.pieces = std::clamp(ceil_div(item.partitions, per_piece), 1U, kPieces);
  return gradient;
}

double Timeline::add(const TimelineItem& item) {
  double end = item.ready_s;
  if (world_.members > 1 && item.raw > 0) {
    const Gradient gradient = describe(item);
    if (item.topology == "direct") end = direct(gradient);
    if (item.topology == "ps") end = parameter_server(gradient);
    if (item.topology == "ring") end = ring(gradient);
    if (item.topology == "two_level") end = two_level(gradient);
  }
  finish_ = std::max(finish_, end);
  return end;
}

}  // namespace casync
