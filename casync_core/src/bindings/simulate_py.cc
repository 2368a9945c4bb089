#include <malloc.h>
#include <pybind11/stl.h>

#include <array>

#include "bindings/bindings.hpp"
#include "bindings/codec_costs.hpp"
#include "bindings/plan_py.hpp"
#include "executor/virtual/simulate.hpp"
#include "record/event_log.hpp"

namespace py = pybind11;

namespace casync {
namespace {

/// Bytes per second, seconds of latency, and seconds that the planner counts for a message.
using Link = std::array<double, 3>;

LinkSpeed speed_of(const Link& link) { return {link[0], static_cast<Nanoseconds>(link[1] * 1e9)}; }

py::dict simulate_step(const std::vector<std::pair<std::int64_t, std::int64_t>>& gradients,
                       std::vector<std::uint32_t> host_of, const Link& between, const Link& within,
                       std::string compression, std::string topology, std::string coordinator, double backward_s,
                       double partition_bytes, std::optional<std::uint32_t> partitions, std::size_t pool_bytes,
                       int worker_threads, const CodecSeconds& codecs, const CodecSeconds& device_codecs,
                       std::optional<double> copy_rate, std::uint64_t seed, std::string timeline,
                       const std::vector<py::dict>& plans) {
  using namespace py::literals;
  SimulationRequest request;
  for (const auto& [rows, cols] : gradients) request.gradients.push_back({rows, cols});
  request.host_of = std::move(host_of);
  request.between = speed_of(between);
  request.within = speed_of(within);
  request.costs.inter.message_s = between[2];
  request.costs.intra.message_s = within[2];
  request.costs.codecs = codec_costs(codecs);
  request.costs.device_codecs = codec_costs(device_codecs);
  if (copy_rate) {
    request.memory = MemoryKind::device;
    request.costs.copy_s_per_byte = 1 / *copy_rate;
  }
  request.compression = std::move(compression);
  request.topology = std::move(topology);
  request.coordinator.policy = std::move(coordinator);
  request.backward_s = backward_s;
  request.planner.partition_bytes = partition_bytes;
  request.partitions = partitions;
  request.pool_bytes = pool_bytes;
  request.worker_threads = worker_threads;
  request.seed = seed;
  request.timeline = std::move(timeline);
  for (const py::dict& plan : plans)
    request.plans.push_back(plan_of(detail::concat("gradient", request.plans.size()), plan));
  Simulation result;
  {
    const py::gil_scoped_release release;
    result = simulate(request);
    malloc_trim(0);  // a world of many ranks takes gigabytes
  }
  py::list used;
  for (const GradientPlan& plan : result.plans) {
    used.append(py::dict("codec"_a = plan.codec, "topology"_a = plan.topology, "partitions"_a = plan.partitions,
                         "predicted_s"_a = plan.predicted_s));
  }
  return py::dict("step_s"_a = result.step_s, "sent_bytes"_a = result.busiest_sent, "turns"_a = result.turns,
                  "plans"_a = used);
}

}  // namespace

void bind_simulate(py::module_& module) {
  using namespace py::literals;
  module.def(
      "simulate", &simulate_step, "gradients"_a, "host_of"_a, "between"_a, "within"_a, "compression"_a, "topology"_a,
      "coordinator"_a = "local", "backward_s"_a = 0.0, "partition_bytes"_a = PlannerOptions{}.partition_bytes,
      "partitions"_a = py::none(), "pool_bytes"_a = kPoolBytes, "worker_threads"_a = 1, "codecs"_a = CodecSeconds{},
      "device_codecs"_a = CodecSeconds{}, "copy_rate"_a = py::none(), "seed"_a = 1, "timeline"_a = "",
      "plans"_a = std::vector<py::dict>{},
      "Predict a step in virtual time: gradients as (rows, cols); links between hosts and within them as (bytes/s, "
      "seconds of latency, seconds of a message); codecs as (seconds to encode, per byte, to decode, per byte). With a "
      "copy_rate gradients are on devices. With `plans` each gradient has its own. Returns step_s, sent_bytes, turns "
      "and plans.");
  module.def(
      "replay",
      [](const std::string& path) {
        Replay result;
        {
          const py::gil_scoped_release release;
          result = replay(path);
        }
        return py::dict("events"_a = result.events, "actions"_a = result.actions, "difference"_a = result.difference);
      },
      "path"_a, "Feed an event log to a fresh Engine; `difference` is empty if it did the same again.");
}

}  // namespace casync
