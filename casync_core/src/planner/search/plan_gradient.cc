#include <algorithm>
#include <set>

#include "casync/error.hpp"
#include "casync/route.hpp"
#include "collectives/collectives.hpp"
#include "planner/cost/payload_sizes.hpp"
#include "planner/cost/price.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/assign_owners.hpp"
#include "planner/search/candidates.hpp"
#include "planner/search/partitions.hpp"
#include "planner/search/request.hpp"
#include "planner/text.hpp"
#include "routes/phase_list.hpp"

namespace casync {
namespace {

/// A gradient in numbers.
struct Gradient {
  const PlanRequest& request;
  const World& world;
  double raw;
  std::optional<std::string> topology;  ///< as named
};

/// Then every rank's whole gradient goes to one place (request.cc).
bool is_adasum(const Gradient& gradient) { return gradient.request.signature.op == ReduceOp::adasum; }

double payload_of(const Gradient& gradient, const Codec& codec) {
  return expected_payload(gradient.request.costs, gradient.request.name, gradient.request.signature, codec);
}

/// A reducescatter is the first half of a parameter server (reducescatter.cc), and priced as the whole: what is left
/// out is alike for all codecs.
void check_scatters_of(const PlanRequest& request, const Codec& codec) {
  try {
    check_scatters(codec, request.signature.shape);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("tensor ", request.name, ": ", error.what()));
  }
}

std::string route_for(const Gradient& gradient, const Codec& codec, double payload) {
  if (gradient.request.signature.kind == OpKind::reducescatter) {
    check_scatters_of(gradient.request, codec);
    return "ps";
  }
  if (gradient.topology) {
    check_route(gradient.request, *gradient.topology, codec);
    return *gradient.topology;
  }
  const CodecInfo& info = codec.info();
  const PlannerOptions& options = gradient.request.options;
  if (payload <= options.direct_limit_bytes) return "direct";
  const bool shared = gradient.world.hosts() > 1 && gradient.world.most_ranks() > 1;
  if (shared && payload > options.flat_limit_bytes && !is_adasum(gradient)) return "two_level";
  if (gathers(info)) return "direct";
  if (merges_payloads(info) || is_adasum(gradient)) return "ps";
  const bool merges = info.rounds.front().aggregation == Aggregation::reduce;
  return merges && gradient.raw >= options.ring_from_bytes ? "ring" : "ps";
}

/// The codec by one route, with the K that suits it best; or with as few partitions as may be.
Alternative price(const Gradient& gradient, const Codec& codec, const std::string& topology, bool few = false) {
  const CodecInfo& info = codec.info();
  const PlanRequest& request = gradient.request;
  const double payload = payload_of(gradient, codec);
  const bool sends_raw = gradient.world.costs(topology, info, 1).sends_raw(info);
  const ComputeCost compute = compute_cost(request.costs, info.spec, request.signature.memory, sends_raw, gradient.raw);
  // A partition's memory is that of the longest payload.
  PartitionRange range = partition_range(request.options, gradient.world.members(), gradient.raw,
                                         largest_payload(request.signature, codec), info.whole || is_adasum(gradient));
  if (few) range.most = range.least;
  const auto seconds_of = [&](std::uint32_t partitions) {
    return predict(gradient.world, {topology, info, partitions, gradient.raw, payload}, request.costs, compute.codec);
  };
  const std::uint32_t partitions =
      feasible_partitions(codec, request.signature.shape, best_partitions(range, seconds_of).partitions);
  return {info.spec, topology, partitions, seconds_of(partitions) + compute.copies_s};
}

/// By the route that the rules name.
Alternative price(const Gradient& gradient, const Codec& codec) {
  return price(gradient, codec, route_for(gradient, codec, payload_of(gradient, codec)));
}

/// "16 partitions of 1.2 MiB"; sizes are those of the raw gradient.
std::string describe_partitions(std::uint32_t partitions, double raw) {
  if (partitions == 1) return detail::concat("1 partition of ", in_bytes(raw));
  return detail::concat(partitions, " partitions of ", in_bytes(raw / partitions));
}

std::string describe(std::string_view rule, const Decision& decision, double raw) {
  const Alternative& chosen = decision.alternatives.front();
  std::string others;
  for (std::size_t i = 1; i < decision.alternatives.size(); ++i) {
    const Alternative& other = decision.alternatives[i];
    others += detail::concat(i == 1 ? " (" : ", ", other.codec, " ", in_ms(other.seconds));
  }
  if (!others.empty()) others += ")";
  return detail::concat(rule, ": ", chosen.codec, " ", in_ms(chosen.seconds), others, "; ",
                        make_route(chosen.topology)->name(), ", ", describe_partitions(chosen.partitions, raw));
}

/// A chain passes partitions on as they arrive, so K partitions take N-2+K steps (broadcast.cc).
Decision plan_broadcast(const Gradient& gradient) {
  const PlanRequest& request = gradient.request;
  const LinkCost& link = gradient.world.flat_link(request.costs);
  const double n = gradient.world.members();
  const PartitionRange range =
      partition_range(request.options, gradient.world.members(), gradient.raw, gradient.raw, false);
  const BestPartitions best = best_partitions(range, [&](std::uint32_t k) {
    return (n - 1) * link.latency_s + (n - 2 + k) * (link.message_s + gradient.raw / k * link.seconds_per_byte);
  });
  Decision decision;
  decision.alternatives = {{"none", "direct", best.partitions, best.seconds}};
  decision.plan.partitions = best.partitions;
  decision.plan.payload_bytes = static_cast<std::uint64_t>(gradient.raw);
  decision.plan.reason = detail::concat("broadcast along a chain: ", in_ms(best.seconds), ", ",
                                        describe_partitions(best.partitions, gradient.raw));
  return decision;
}

/// The first step in which `codec` is applied to gradients of `shape`; kLateStep: in none before, and perhaps in none.
std::uint32_t first_step(const Codec& codec, const Shape& shape) {
  std::uint32_t first = 0;
  std::uint32_t last = Codec::kLateStep;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (codec.applies(shape, middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

/// What of the codecs asked for may be taken now, and until when.
struct Candidates {
  std::vector<std::shared_ptr<const Codec>> codecs;
  std::uint32_t until = 0;  ///< the step in which the next one begins; 0: none does
};

Candidates candidates_of(const Asked& asked, const Shape& shape, std::uint32_t sequence) {
  Candidates candidates;
  for (const auto& codec : asked.codecs) {
    const std::uint32_t first = codec->applies(shape, sequence) ? 0 : first_step(*codec, shape);
    if (first == 0) candidates.codecs.push_back(codec);
    const bool later = first > 0 && first < Codec::kLateStep;
    if (later && (candidates.until == 0 || first < candidates.until)) candidates.until = first;
  }
  return candidates;
}

Decision plan_reduction(const Gradient& gradient, const Asked& asked) {
  const PlanRequest& request = gradient.request;
  const auto none = make_codec("none");
  const bool small = !asked.always && request.signature.shape.numel() < request.options.min_numel;
  Decision decision;
  const auto consider = [&](const Codec& codec) { decision.alternatives.push_back(price(gradient, codec)); };
  std::string rule = "as asked";
  if (small && (asked.automatic || !asked.codecs.front()->info().identity)) {
    consider(*none);
    rule = detail::concat("under ", request.options.min_numel, " elements nothing is compressed");
  } else {
    const Shape& shape = request.signature.shape;
    const Candidates candidates = candidates_of(asked, shape, request.sequence);
    decision.plan.until = candidates.until;
    if (asked.automatic) rule = "auto";
    const bool begins_later = candidates.codecs.empty() && candidates.until > 0;
    const bool is_open = asked.interval == 0;
    if (!small && !begins_later) decision.plan.period = is_open ? request.options.interval : asked.interval;
    if (decision.plan.period > 1) {
      decision.plan.coefficient = asked.coefficient;
      rule = detail::concat("as asked, in one step of ", decision.plan.period, is_open ? ", which was measured" : "");
    }
    if (small && asked.interval != 1)
      rule = detail::concat("under ", request.options.min_numel, " elements it goes in every step");
    if (candidates.codecs.empty()) {
      consider(*none);
      const std::string& spec = asked.codecs.front()->info().spec;
      rule = candidates.until > 0 ? detail::concat(spec, " begins with step ", candidates.until)
                                  : detail::concat(spec, " does not apply to ", shape.rows, " x ", shape.cols);
    }
    for (const auto& codec : candidates.codecs) {
      const CodecInfo& info = codec->info();
      try {
        consider(*codec);
      } catch (const InvalidArgument&) {
        // A candidate that the named topology cannot carry is no candidate; a codec that was named is an error.
        if (!asked.automatic || info.identity) throw;
      }
    }
  }
  auto& all = decision.alternatives;
  // Stable, so a tie keeps the order of the candidates.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const auto is_none = [](const Alternative& alternative) { return alternative.codec == "none"; };
  if (std::none_of(all.begin(), all.end(), is_none)) {
    // Priced for comparison only: a route that is named for the codec carries `none` too.
    consider(*none);
  }
  decision.original_s = std::find_if(all.begin(), all.end(), is_none)->seconds;

  if (request.way != nullptr) {
    if (all.front().codec != request.way->codec) rule += ", for the step as a whole";
    std::erase_if(all, [&](const Alternative& one) { return one.codec == request.way->codec; });
    all.insert(all.begin(), *request.way);
  }
  const Alternative& chosen = all.front();
  decision.plan.codec = chosen.codec;
  decision.plan.topology = chosen.topology;
  decision.plan.partitions = chosen.partitions;
  decision.plan.on_host = chosen.on_host;
  const double payload = payload_of(gradient, *make_codec(chosen.codec));
  const std::shared_ptr<const Route> route = make_route(chosen.topology);
  const std::uint32_t parts = route->has_one_owner() ? 1 : chosen.partitions;
  Balance balance =
      deal(route->owners(request.world.host_of()), request.world.members(), parts, payload / parts, request.load);
  decision.plan.first_owner = balance.first_owner;
  decision.load = std::move(balance.load);
  decision.plan.payload_bytes = static_cast<std::uint64_t>(payload);
  decision.plan.reason = describe(rule, decision, gradient.raw);
  return decision;
}

Decision plan_trivially(std::string reason) {
  Decision decision;
  decision.alternatives = {{"none", "direct", 1, 0}};
  decision.plan.reason = std::move(reason);
  return decision;
}

/// Lists with a codec that a route of another name is not, and that may be of use.
std::vector<std::string> lists_of_their_own() {
  const std::set<std::string_view> others{
      "phases(flat allgather coded)", "phases(flat alltoall coded, flat allgather coded)",
      "phases(intra reduce_scatter, inter allgather coded, intra allgather)",
      "phases(intra reduce_scatter, inter alltoall coded, inter allgather coded, intra allgather passed)"};
  const auto is_rooted = [](const ListedPhase& phase) {
    return phase.routine == Routine::reduce || phase.routine == Routine::gather || phase.routine == Routine::broadcast;
  };
  // It is laid out as reduce_scatter and allgather.
  const auto is_allreduce = [](const ListedPhase& phase) { return phase.routine == Routine::allreduce; };
  const auto is_coded = [](const ListedPhase& phase) { return phase.carries == Carries::coded; };
  // To pass payloads on never takes more than to decode them and encode the same again.
  const auto encodes_again = [&](const PhaseList& list) {
    const auto last = list.rbegin();
    return list.size() == 4 && is_coded(last[0]) && is_coded(last[1]);
  };
  std::vector<std::string> lists;
  for (const PhaseList& list : every_phase_list()) {
    if (why_not_executed(list) || encodes_again(list) || others.contains(text_of(list))) continue;
    if (std::ranges::any_of(list, is_rooted) || std::ranges::any_of(list, is_allreduce)) continue;
    if (std::ranges::any_of(list, is_coded)) lists.push_back(text_of(list));
  }
  return lists;
}

/// What the request asks for, if it can be carried.
Asked checked_request(const PlanRequest& request) {
  Asked asked = parse_request(request);
  const Signature& signature = request.signature;
  const Codec& codec = *asked.codecs.front();
  if (signature.kind == OpKind::allreduce && asked.topology) check_route(request, *asked.topology, codec);
  if (signature.kind == OpKind::reducescatter) check_scatters_of(request, codec);
  return asked;
}

}  // namespace

std::vector<Alternative> ways_of(const PlanRequest& request) {
  const Asked asked = checked_request(request);
  const Signature& signature = request.signature;
  const Gradient gradient{request, request.world,
                          static_cast<double>(signature.shape.numel()) * static_cast<double>(size_of(signature.dtype)),
                          asked.topology};
  std::vector<Alternative> ways;
  const auto consider = [&](Alternative way) {
    const bool known = std::ranges::any_of(ways, [&](const Alternative& one) {
      return one.codec == way.codec && one.topology == way.topology && one.partitions == way.partitions;
    });
    if (!known) ways.push_back(std::move(way));
  };
  for (const auto& codec : candidates_of(asked, signature.shape, request.sequence).codecs) {
    for (const std::string_view topology : route_names()) {
      if (asked.topology && *asked.topology != topology) continue;
      if (make_route(topology)->why_unsupported({codec->info(), signature.op, request.world.host_of()})) continue;
      for (const bool few : {false, true}) consider(price(gradient, *codec, std::string(topology), few));
    }
  }
  return ways;
}

std::vector<Alternative> listed_ways_of(const PlanRequest& request) {
  const Asked asked = checked_request(request);
  const Signature& signature = request.signature;
  const World& world = request.world;
  if (asked.topology || world.hosts() < 2 || world.most_ranks() < 2 || world.members() > request.options.lists_up_to)
    return {};
  if (signature.kind != OpKind::allreduce) return {};
  const Gradient gradient{request, world,
                          static_cast<double>(signature.shape.numel()) * static_cast<double>(size_of(signature.dtype)),
                          std::nullopt};
  static const std::vector<std::string> lists = lists_of_their_own();
  std::vector<Alternative> ways;
  for (const auto& codec : candidates_of(asked, signature.shape, request.sequence).codecs) {
    if (codec->info().identity) continue;
    for (const std::string& list : lists) {
      if (make_route(list)->why_unsupported({codec->info(), signature.op, world.host_of()})) continue;
      ways.push_back(price(gradient, *codec, list));
    }
  }
  return ways;
}

void check_gradient(const PlanRequest& request) { checked_request(request); }

Decision plan_gradient(const PlanRequest& request) {
  const Asked asked = checked_request(request);
  const Signature& signature = request.signature;
  const auto numel = static_cast<double>(signature.shape.numel());
  const Gradient gradient{request, request.world, numel * static_cast<double>(size_of(signature.dtype)),
                          asked.topology};
  Decision decision;
  if (gradient.world.members() <= 1) {
    decision = plan_trivially("a world of one: the result is the input");
  } else if (numel == 0) {
    decision = plan_trivially("the tensor is empty");
  } else {
    switch (signature.kind) {
      case OpKind::allreduce:
      case OpKind::reducescatter:
        decision = plan_reduction(gradient, asked);
        break;
      case OpKind::broadcast:
        decision = plan_broadcast(gradient);
        break;
      case OpKind::allgather:
      case OpKind::alltoall:
        decision = plan_trivially(detail::concat("an ", name_of(signature.kind), " has one partition per member"));
        break;
      case OpKind::barrier:
        decision = plan_trivially("a barrier carries nothing");
        break;
      case OpKind::join:
        decision = plan_trivially("a join carries nothing");
        break;
    }
  }
  if (reduces(signature.kind)) {
    decision.plan.tensor = tensor_of(signature);
    decision.plan.priority = signature.priority;
  }
  const Alternative& chosen = decision.alternatives.front();
  decision.seconds = chosen.seconds;
  if (!reduces(signature.kind)) decision.original_s = chosen.seconds;
  if (decision.load.bytes.empty()) decision.load = request.load;
  decision.plan.epoch = request.options.epoch;
  decision.plan.predicted_s = decision.seconds;
  decision.plan.uncompressed_s = decision.original_s;
  return decision;
}

}  // namespace casync
