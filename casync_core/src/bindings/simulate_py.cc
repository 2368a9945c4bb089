#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "executor/virtual/simulate.hpp"
#include "record/event_log.hpp"

namespace py = pybind11;

namespace casync {
namespace {

py::dict simulate_step(const std::vector<std::pair<std::int64_t, std::int64_t>>& gradients,
                       std::vector<std::uint32_t> host_of, double rate, double latency_s, std::string compression,
                       std::string topology, std::string coordinator, double backward_s, double partition_bytes,
                       int worker_threads, std::uint64_t seed) {
  using namespace py::literals;
  SimulationRequest request;
  for (const auto& [rows, cols] : gradients) request.gradients.push_back({rows, cols});
  request.host_of = std::move(host_of);
  request.between = {rate, static_cast<Nanoseconds>(latency_s * 1e9)};
  request.compression = std::move(compression);
  request.topology = std::move(topology);
  request.coordinator.policy = std::move(coordinator);
  request.backward_s = backward_s;
  request.planner.partition_bytes = partition_bytes;
  request.worker_threads = worker_threads;
  request.seed = seed;
  Simulation result;
  {
    const py::gil_scoped_release release;
    result = simulate(request);
  }
  return py::dict("step_s"_a = result.step_s, "sent_bytes"_a = result.busiest_sent, "turns"_a = result.turns);
}

}  // namespace

void bind_simulate(py::module_& module) {
  using namespace py::literals;
  module.def(
      "simulate", &simulate_step, "gradients"_a, "host_of"_a, "rate"_a, "latency_s"_a, "compression"_a, "topology"_a,
      "coordinator"_a = "local", "backward_s"_a = 0.0, "partition_bytes"_a = PlannerOptions{}.partition_bytes,
      "worker_threads"_a = 1, "seed"_a = 1,
      "Predict a step in virtual time: gradients as (rows, cols), rate in bytes/s. Returns step_s, sent_bytes, turns.");
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
