#include "executor/virtual/simulate.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "casync/error.hpp"
#include "executor/measure/timeline.hpp"
#include "executor/virtual/world.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/assign_offsets.hpp"
#include "planner/search/request.hpp"

namespace casync {
namespace {

constexpr std::size_t kMostSteps = 840;  // a multiple of all periods up to 8

constexpr Nanoseconds from_seconds(double seconds) { return static_cast<Nanoseconds>(seconds * 1e9); }

/// What a job takes on one processor or on its device, by the costs of its codec, with the copies between both.
Nanoseconds time_of(const Job& job, const SimulationRequest& request) {
  const std::string& spec = job.codec->info().spec;
  const auto device = request.costs.device_codecs.find(spec);
  const bool there = device != request.costs.device_codecs.end();
  const CodecCost cost = there ? device->second : request.costs.of(spec);
  const Segment& segment = job.segment;
  const double raw = static_cast<double>(segment.range.size()) * static_cast<double>(size_of(segment.dtype));
  double seconds = 0;
  double payloads = 0;
  bool decodes = false;
  const bool encodes = !segment.payload.empty();
  if (encodes) {
    seconds += cost.encode_fixed_s + raw * cost.encode_s_per_byte;
    payloads += static_cast<double>(segment.payload.size());
  }
  for (const Source& source : job.sources) {
    if (source.raw) continue;
    decodes = true;
    seconds += cost.decode_fixed_s + raw * cost.decode_s_per_byte;
    payloads += static_cast<double>(source.bytes);
  }
  if (request.memory == MemoryKind::device && !job.codec->info().identity) {
    const double gradients = raw * (static_cast<double>(encodes) + static_cast<double>(decodes));
    seconds += (there ? payloads : gradients) * request.costs.copy_s_per_byte;
  }
  return from_seconds(seconds);
}

/// What the planner goes by: the links of the request, and of a codec what it costs where it is computed.
CostTable planned_costs(const SimulationRequest& request) {
  CostTable costs = request.costs;
  const auto set = [](LinkCost& cost, const LinkSpeed& speed) {
    cost.latency_s = static_cast<double>(speed.latency) * 1e-9;
    cost.seconds_per_byte = 1 / speed.bytes_per_second;
  };
  set(costs.inter, request.between);
  set(costs.intra, request.within);
  for (const auto& [spec, cost] : request.costs.device_codecs) costs.codecs[spec] = cost;
  return costs;
}

}  // namespace

Simulation simulate(const SimulationRequest& request) {
  if (parse_compression(request.compression).interval == 0) {
    throw InvalidArgument(detail::concat("compression '", request.compression,
                                         "' measures its interval in a job; to simulate it, name one, as in "
                                         "covap(fp16, interval=4)"));
  }
  const auto size = static_cast<int>(request.host_of.size());
  if (size == 0) throw InvalidArgument("a simulation needs at least one rank");
  if (!request.plans.empty() && request.plans.size() != request.gradients.size())
    throw InvalidArgument(detail::concat(request.plans.size(), " plans for ", request.gradients.size(), " gradients"));
  const CostTable costs = planned_costs(request);

  Simulation result;
  VirtualScript script;
  const World hosts(request.host_of);
  OwnerLoad load;
  OffsetDealer offsets(request.host_of);
  std::size_t interval = 1;
  double all = 0;
  for (const Shape& shape : request.gradients) all += static_cast<double>(shape.numel());
  double before = all;
  std::vector<Submission> submissions;
  for (std::size_t g = 0; g < request.gradients.size(); ++g) {
    VirtualTensor tensor;
    tensor.name = detail::concat("gradient", g);
    tensor.signature.shape = request.gradients[g];
    tensor.signature.compression = request.compression;
    tensor.signature.topology = request.topology;
    if (request.plans.empty()) {
      Decision decision =
          plan_gradient({tensor.name, tensor.signature, hosts, costs, request.planner, load, Codec::kLateStep});
      decision.plan.partitions = request.partitions.value_or(decision.plan.partitions);
      if (decision.plan.period > 1) {
        offsets.deal(tensor.name, decision.plan);
      } else {
        load = std::move(decision.load);
      }
      tensor.plan = std::move(decision.plan);
    } else {
      tensor.plan = request.plans[g];
    }
    interval = std::lcm(interval, std::size_t{tensor.plan.period});
    if (interval > kMostSteps)
      throw InvalidArgument(detail::concat("the periods of these plans have no multiple up to ", kMostSteps));
    result.plans.push_back(tensor.plan);
    submissions.push_back(
        {static_cast<std::uint32_t>(g), from_seconds(all > 0 ? request.backward_s * before / all : 0), 0});
    before -= static_cast<double>(request.gradients[g].numel());
    script.tensors.push_back(std::move(tensor));
  }
  script.steps.assign(2 * interval, std::vector<std::vector<Submission>>(request.host_of.size(), submissions));

  VirtualOptions options;
  options.seed = request.seed;
  options.network.host_of = request.host_of;
  options.network.between = request.between;
  options.network.within = request.within;
  options.coordinator = request.coordinator;
  const auto on_device = [&](const GradientPlan& plan) { return costs.device_codecs.contains(plan.codec); };
  options.workers.threads = std::ranges::any_of(result.plans, on_device) ? 1 : request.worker_threads;
  options.engine.pool_bytes = request.pool_bytes;
  options.workers.cost = [&request](const Job& job) { return time_of(job, request); };
  options.sizes_only = true;
  options.ticks = false;
  options.patience = std::numeric_limits<Nanoseconds>::max() / 2;  // one message may take hours
  VirtualWorld world(options, std::move(script), nullptr);
  std::optional<Timeline> timeline;
  if (!request.timeline.empty()) {
    timeline.emplace(request.timeline, world.driver(0).operations(), world.driver(0).memory(), 0, false,
                     [&world] { return world.now(); });
    world.driver(0).watched_by(*timeline);
  }
  const VirtualOutcome outcome = world.run();
  if (timeline) world.driver(0).unwatched_by(*timeline);
  CASYNC_CHECK(!outcome.hung, outcome.waiting);

  const auto steps = static_cast<double>(interval);
  for (std::size_t s = interval; s < 2 * interval; ++s) {
    const double took_s = static_cast<double>(outcome.step_ends[s] - outcome.step_ends[s - 1]) * 1e-9;
    result.step_s += std::max(took_s, request.backward_s) / steps;
  }
  result.turns = outcome.turns;
  for (int r = 0; r < size; ++r) {
    result.busiest_sent =
        std::max(result.busiest_sent, static_cast<double>(world.transport(r).counters().sent_bytes) / (2 * steps));
  }
  return result;
}

}  // namespace casync
