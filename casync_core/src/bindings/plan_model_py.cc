#include <pybind11/stl.h>

#include <array>

#include "bindings/bindings.hpp"
#include "bindings/codec_costs.hpp"
#include "casync/error.hpp"
#include "planner/search/search_space.hpp"

namespace py = pybind11;

namespace casync {
namespace {

/// No job waits for it, so it may count for longer.
constexpr std::uint32_t kLargest = 128;

LinkCost link_of(const std::array<double, 3>& link) { return {link[0], link[1], link[2]}; }

py::dict to_dict(const ModelPlan& plan) {
  using namespace py::literals;
  py::list ways;
  for (const Alternative& way : plan.ways)
    ways.append(py::dict("codec"_a = way.codec, "topology"_a = way.topology, "partitions"_a = way.partitions,
                         "on_host"_a = way.on_host));
  py::dict uniform;
  for (const auto& [codec, predicted] : plan.uniform) uniform[py::str(codec)] = predicted.step_s;
  return py::dict("step_s"_a = plan.step_s, "descent_s"_a = plan.descent_s, "options_s"_a = plan.options_s,
                  "bound_s"_a = plan.bound_s, "alone_s"_a = plan.alone_s, "uniform"_a = uniform, "ways"_a = ways,
                  "bookings"_a = plan.bookings);
}

py::dict plan(const std::vector<std::tuple<std::int64_t, std::int64_t, double>>& gradients,
              std::vector<std::uint32_t> host_of, const std::array<double, 3>& inter,
              const std::array<double, 3>& intra, const CodecSeconds& codecs, const CodecSeconds& device_codecs,
              double copy_s_per_byte, double processors, bool on_device, const std::string& compression) {
  const World world(std::move(host_of));
  CostTable costs;
  costs.inter = link_of(inter);
  costs.intra = link_of(intra);
  costs.codecs = codec_costs(codecs);
  costs.device_codecs = codec_costs(device_codecs);
  costs.copy_s_per_byte = copy_s_per_byte;
  costs.processors = processors;
  std::vector<OpenGradient> open;
  for (const auto& [rows, cols, ready_s] : gradients) {
    OpenGradient& gradient = open.emplace_back();
    gradient.name = detail::concat("gradient ", open.size());
    gradient.signature.shape = {rows, cols};
    gradient.signature.dims = detail::concat("(", rows, ", ", cols, ")");
    gradient.signature.compression = compression;
    gradient.signature.topology = "auto";
    gradient.signature.memory = on_device ? MemoryKind::device : MemoryKind::host;
    costs.gradients[gradient.name] = {static_cast<double>(rows * cols) * 4, {}, ready_s};
  }
  PlannerOptions options;
  options.all_routes_up_to = options.lists_up_to = kLargest;
  const OwnerLoad load;
  const std::vector<SettledGradient> settled;
  ModelPlan plan;
  {
    const py::gil_scoped_release release;
    plan = plan_model({world, costs, options, load, open, settled});
  }
  return to_dict(plan);
}

}  // namespace

void bind_plan_model(py::module_& module) {
  using namespace py::literals;
  module.def("plan_model", &plan, "gradients"_a, "host_of"_a, "inter"_a, "intra"_a, "codecs"_a, "device_codecs"_a,
             "copy_s_per_byte"_a, "processors"_a, "on_device"_a, "compression"_a,
             "Plan a model's gradients, as (rows, cols, seconds until it is ready), from costs that are given.");
}

}  // namespace casync
