#include "planner/search/step_model.hpp"

#include <algorithm>
#include <cmath>

#include "casync/route.hpp"
#include "planner/cost/price.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kPieces = 16;          // of one gradient
constexpr std::uint32_t kParts = 8;            // of one piece, where two resources work on it at a time
constexpr double kInHeadBytes = kInlineBytes;  // messages up to this travel inside a head
constexpr double kStartHops = 2;               // of an operation: ready to the root, start from it
constexpr double kCreditHops = 1;  // of one that sends at once: the receiver's credit; else encoding hides it

/// A message's way besides its bytes: a body follows its announcement.
double hop_seconds(const LinkCost& link, double bytes) { return link.latency_s * (bytes > kInHeadBytes ? 2 : 1); }

}  // namespace

/// A gradient in numbers, of one partition.
struct StepModel::Gradient {
  double ready_s = 0;  ///< when it can begin
  double raw = 0;
  double payload = 0;
  CodecCost codec;
  CodecCost none;
  std::uint32_t pieces = 1;
  const RouteCosts* route = nullptr;
  Resource* computes = nullptr;  ///< does what the codec does
  bool has_one_owner = false;    ///< of all pieces, which so wait for each other there

  /// Of a piece.
  Share compute(const Calls& calls) const { return compute_seconds(calls, codec, none, raw) / pieces; }
  /// Of a piece, as many parts as its busiest rank has tasks.
  std::uint32_t parts(const Calls& calls) const {
    return std::clamp(static_cast<std::uint32_t>(calls.tasks / pieces), 1U, kParts);
  }
};

double StepModel::Resource::book(double from, double duration) {
  if (duration <= 0) return from;
  booked_ += duration;
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

StepModel::StepModel(CostTable costs, const World& world) : costs_(std::move(costs)), world_(world) {}

double StepModel::take(Resource& resource, double from, const Share& share, double& busiest_until) {
  ++bookings_;
  const double stretch = &resource == &processor_ ? costs_.stretch() : 1;
  busiest_until = std::max(busiest_until, from) + stretch * share.busiest;
  return std::max(resource.book(from, stretch * share.mean), busiest_until);
}

double StepModel::relay(double from, const Stage& first, const Stage& second, std::uint32_t parts, double last) {
  double done = from;
  double end = from;
  for (std::uint32_t part = 0; part < parts; ++part) {
    done = take(first.resource, done, first.share / parts, first.busiest_until);
    end = take(second.resource, std::max(done, end), second.share / parts, second.busiest_until);
  }
  return std::max(end, done + last);
}

double StepModel::pass(const Gradient& g, const Layer& layer, Busiest& busiest, double from, const Share& leading,
                       const Share& ending, std::uint32_t parts) {
  struct Arrival {
    double done = 0;   // sending and what is computed beside it
    double after = 0;  // from then to the receiver's next task
  };
  const auto seconds_of = [&](const RouteTraffic& traffic, const LinkCost& link) {
    return (traffic.payloads * (g.payload * link.seconds_per_byte) + traffic.raws * (g.raw * link.seconds_per_byte) +
            traffic.messages * link.message_s) /
           g.pieces;
  };
  const auto over = [&](const RouteTraffic& traffic, const LinkCost& link, Resource& resource, const Share& seconds,
                        double& busiest_until, const Share& before, const Share& beside) {
    if (!traffic.used()) return Arrival{from, 0};
    const double bytes = traffic.raws.busiest > 0 ? g.raw : g.payload;
    const double send_s = link.message_s + bytes * link.seconds_per_byte;
    // Ranks compute in one order, so all that is sent of a partition meets at the one who gathers it, the last one's
    // too. Else messages of several senders meet at a receiver as chance has it: the last waits for half of the others.
    const bool gathers = traffic.fan_in > traffic.fan_out;
    const double meeting_s = !gathers && traffic.senders > 1 ? traffic.senders / 2 * send_s : 0;
    const double last = gathers && before.busiest > 0 ? traffic.fan_in * send_s : 0;
    const Stage sends{resource, seconds, busiest_until};
    const Share own = &resource == &nic_ ? carried_by_processor(g, traffic, bytes) : Share{};
    const double done = beside.busiest > 0
                            ? relay(from, sends, {*g.computes, beside + own, busiest.computes}, parts)
                            : relay(from, {*g.computes, before + own, busiest.computes}, sends, parts, last);
    return Arrival{done, hop_seconds(link, bytes) + meeting_s};
  };
  const bool across = layer.between.used();
  const double part = layer.between.part;
  Share network = seconds_of(layer.between, costs_.inter);
  Share host = seconds_of(layer.inside, costs_.intra);
  // A partition that crosses the network in this layer may not in the next, as in a ring.
  if (across && part < 1) network.busiest = host.busiest = part * network.busiest + (1 - part) * host.busiest;
  const Arrival between = over(layer.between, costs_.inter, nic_, network, busiest.between, leading, ending);
  Resource& copies = takes_turns() ? processor_ : inside_;
  const Arrival inside = over(layer.inside, costs_.intra, copies, host, busiest.inside, across ? Share{} : leading,
                              across ? Share{} : ending);
  return std::max(between.done, inside.done) + part * std::max(between.after, inside.after) + (1 - part) * inside.after;
}

/// Of a piece: what a processor does for messages between hosts, where it has nothing else that could.
Share StepModel::carried_by_processor(const Gradient& g, const RouteTraffic& traffic, double bytes) const {
  if (!takes_turns()) return {};
  const LinkCost& link = costs_.inter;
  const Share carried =
      traffic.payloads * (g.payload * link.processor_s_per_byte) + traffic.raws * (g.raw * link.processor_s_per_byte);
  const double messages_s = bytes > kInHeadBytes ? 2 * link.message_s : 0;  // a sender's and a receiver's
  return (carried / world_.most_ranks() + traffic.messages * messages_s) / g.pieces;
}

/// Its part for one gradient. On a processor it takes turns with all else, and of other ranks too.
double StepModel::compute_backward(Resource& where, double until_s) {
  const double part_s = std::max(0.0, until_s - backward_s_);
  backward_s_ += part_s;
  const double work = &where == &processor_ ? costs_.backward_work : 1;
  const double stretch = &where == &processor_ ? costs_.stretch() : 1;
  backward_end_ = where.book(backward_end_ + (1 - work) * part_s, stretch * work * part_s);
  return backward_end_;
}

/// Layer by layer. Every piece takes a step before any takes the next: the engine, too, has all partitions of a
/// gradient under way at a time. Where a rank computes several partitions of a piece, sends of the first begin while it
/// computes the others; likewise it computes what has arrived while the rest is sent.
double StepModel::synchronise(const Gradient& g) {
  double end = g.ready_s;
  std::vector<double> at(g.pieces, g.ready_s);
  bool computed = false;  // what ends in this layer, beside the sends of the one before
  for (std::size_t l = 0; l < g.route->layers.size(); ++l) {
    const Layer& layer = g.route->layers[l];
    Busiest busiest;
    if (const Share ending = g.compute(layer.ending); ending.busiest > 0 && !computed) {
      for (const double piece : at) {
        if (!g.has_one_owner) busiest = {};
        end = std::max(end, take(*g.computes, piece, ending, busiest.computes));
      }
    }
    if (!layer.between.used() && !layer.inside.used()) break;
    const std::uint32_t parts = g.parts(layer.leading);
    const Layer& next = g.route->layers[l + 1];
    const Share leading = g.compute(layer.leading);
    const Share ending = g.compute(next.ending);
    computed = parts == 1 && ending.busiest > 0 && next.leading.tasks == 0 && g.parts(next.ending) > 1;
    if (computed && leading.busiest > 0) {
      for (double& piece : at) {
        if (!g.has_one_owner) busiest = {};
        piece = take(*g.computes, piece, leading, busiest.computes);
      }
    }
    for (double& piece : at) {
      if (!g.has_one_owner) busiest = {};
      piece = computed ? pass(g, layer, busiest, piece, {}, ending, g.parts(next.ending))
                       : pass(g, layer, busiest, piece, leading, {}, parts);
      end = std::max(end, piece);
    }
  }
  return end;
}

StepModel::Gradient StepModel::describe(const StepItem& item, double ready_s) {
  const std::shared_ptr<const Route> route = make_route(item.topology);
  Gradient gradient;
  gradient.route = &world_.costs(item.topology, *item.codec, item.partitions);
  gradient.raw = item.raw / item.partitions;
  gradient.payload = item.payload / item.partitions;
  gradient.codec = item.cost;
  gradient.computes = item.place == Place::device ? &device_ : &processor_;
  gradient.has_one_owner = route->has_one_owner();
  gradient.none = costs_.of("none");
  const bool at_once = route->merges_at_once() && item.codec->identity && gradient.payload <= kInHeadBytes;
  const double hops = at_once ? 0 : item.codec->identity ? kStartHops + kCreditHops : kStartHops;
  gradient.ready_s = ready_s + hops * world_.flat_link(costs_).latency_s;
  // Partitions of a piece: so many that all hosts send at a time; where one owner has all of them, each is one.
  double part = 0;
  for (const Layer& layer : gradient.route->layers) part = std::max(part, layer.between.part);
  const double turn = gradient.has_one_owner ? 1 : gradient.route->turn * (part > 0 ? part : 1);
  gradient.pieces = std::clamp(static_cast<std::uint32_t>(std::ceil(item.partitions / turn)), 1U, kPieces);
  return gradient;
}

StepModel::Needs StepModel::needs() const {
  return {processor_.booked(), device_.booked(), copies_.booked(), nic_.booked(), inside_.booked(), finish_};
}

double StepModel::add(const StepItem& item) {
  const bool on_host = item.place == Place::host;
  double ready_s =
      on_host && !takes_turns() ? item.ready_s : compute_backward(on_host ? processor_ : device_, item.ready_s);
  const Share copy{item.copies_s / 2, item.copies_s / 2};
  double copied = 0;
  if (takes_turns() && world_.members() > 1) ready_s = processor_.book(ready_s, costs_.stretch() * costs_.operation_s);
  if (copy.busiest > 0) ready_s = take(copies_, ready_s, copy, copied);
  double end = world_.members() > 1 && item.raw > 0 ? synchronise(describe(item, ready_s)) : ready_s;
  if (copy.busiest > 0) end = take(copies_, end, copy, copied);
  finish_ = std::max(finish_, end);
  return end;
}

}  // namespace casync
