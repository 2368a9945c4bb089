#include "executor/virtual/simulate.hpp"

#include <algorithm>

#include "casync/error.hpp"
#include "executor/virtual/world.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/assign_offsets.hpp"
#include "planner/search/request.hpp"

namespace casync {
namespace {

constexpr Nanoseconds from_seconds(double seconds) { return static_cast<Nanoseconds>(seconds * 1e9); }

/// Linux gives a socket up to 4 MiB of what is to be sent, and casyncrun has MPI send up to 512 KiB unasked.
constexpr Connection kConnection{.buffer_bytes = 4 << 20, .eager_bytes = 512 << 10};

/// What a coordinator costs that asks and grants: its messages wait behind bodies, and until their receiver looks. The
/// local one sends none, so that none of this shows.
void charge_messages(VirtualOptions& options) {
  options.network.connection = kConnection;
  options.notice = 100'000;  // between two looks while bytes move (progress/idle_sleep)
}

/// What a job takes on one processor, by the costs of its codec.
Nanoseconds time_of(const Job& job, const CostTable& costs) {
  const CodecCost cost = costs.of(job.codec->info().spec);
  const Segment& segment = job.segment;
  const double raw = static_cast<double>(segment.range.size()) * static_cast<double>(size_of(segment.dtype));
  double seconds = segment.payload.empty() ? 0 : cost.encode_fixed_s + raw * cost.encode_s_per_byte;
  for (const Source& source : job.sources) {
    if (!source.raw) seconds += cost.decode_fixed_s + raw * cost.decode_s_per_byte;
  }
  return from_seconds(seconds);
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
  CostTable costs = request.costs;
  costs.inter = {static_cast<double>(request.between.latency) * 1e-9, 1 / request.between.bytes_per_second, 5e-6};
  costs.intra = {static_cast<double>(request.within.latency) * 1e-9, 1 / request.within.bytes_per_second, 5e-6};

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
    Decision decision =
        plan_gradient({tensor.name, tensor.signature, hosts, costs, request.planner, load, Codec::kLateStep});
    if (decision.plan.period > 1) {
      offsets.deal(tensor.name, decision.plan);
      interval = decision.plan.period;
    } else {
      load = std::move(decision.load);
    }
    tensor.plan = std::move(decision.plan);
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
  if (options.coordinator.policy != CoordinatorOptions{}.policy) charge_messages(options);
  options.workers.threads = request.worker_threads;
  options.workers.cost = [&costs](const Job& job) { return time_of(job, costs); };
  options.sizes_only = true;
  options.ticks = false;
  VirtualWorld world(options, std::move(script), nullptr);
  const VirtualOutcome outcome = world.run();
  CASYNC_CHECK(!outcome.hung, outcome.waiting);

  Simulation result;
  const auto steps = static_cast<double>(interval);
  result.step_s = static_cast<double>(outcome.step_ends.back() - outcome.step_ends[interval - 1]) * 1e-9 / steps;
  result.turns = outcome.turns;
  for (int r = 0; r < size; ++r) {
    result.busiest_sent =
        std::max(result.busiest_sent, static_cast<double>(world.transport(r).counters().sent_bytes) / (2 * steps));
  }
  return result;
}

}  // namespace casync
