#include "bindings/plan_py.hpp"

#include <pybind11/stl.h>

#include "casync/error.hpp"
#include "casync/route.hpp"

namespace py = pybind11;

namespace casync {

py::dict to_dict(const GradientPlan& plan) {
  using namespace py::literals;
  return py::dict(
      "topology"_a = plan.topology, "codec"_a = plan.codec, "partitions"_a = plan.partitions,
      "first_owner"_a = plan.first_owner, "epoch"_a = plan.epoch, "reason"_a = plan.reason, "until"_a = plan.until,
      "on_trial"_a = plan.on_trial, "period"_a = plan.period, "offset"_a = plan.offset,
      "init"_a = plan.coefficient.init, "ascend_steps"_a = plan.coefficient.ascend_steps,
      "ascend_range"_a = plan.coefficient.ascend_range, "priority"_a = plan.priority, "on_host"_a = plan.on_host,
      "tensor"_a = plan.tensor, "predicted_s"_a = plan.predicted_s, "uncompressed_s"_a = plan.uncompressed_s,
      "payload_bytes"_a = plan.payload_bytes, "measured_inter_s_per_byte"_a = plan.measured_inter_s_per_byte,
      "measured_intra_s_per_byte"_a = plan.measured_intra_s_per_byte,
      "measured_encode_s_per_byte"_a = plan.measured_encode_s_per_byte,
      "measured_decode_s_per_byte"_a = plan.measured_decode_s_per_byte);
}

GradientPlan plan_of(const std::string& name, const py::dict& dict) {
  GradientPlan plan;
  plan.topology = dict["topology"].cast<std::string>();
  try {
    make_route(plan.topology);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("the plan of tensor ", name, ": ", error.what()));
  }
  plan.codec = dict["codec"].cast<std::string>();
  plan.partitions = dict["partitions"].cast<std::uint32_t>();
  plan.first_owner = dict["first_owner"].cast<std::uint32_t>();
  plan.period = dict["period"].cast<std::uint32_t>();
  plan.offset = dict["offset"].cast<std::uint32_t>();
  plan.coefficient.init = dict["init"].cast<double>();
  plan.coefficient.ascend_steps = dict["ascend_steps"].cast<std::uint32_t>();
  plan.coefficient.ascend_range = dict["ascend_range"].cast<double>();
  if (const auto why = why_not(plan.coefficient))
    throw InvalidArgument(detail::concat("the plan of tensor ", name, ": ", *why));
  plan.priority = dict["priority"].cast<std::optional<std::int32_t>>();
  plan.on_host = dict["on_host"].cast<bool>();
  plan.tensor = dict["tensor"].cast<std::string>();
  plan.epoch = dict["epoch"].cast<std::uint32_t>();
  plan.reason = dict["reason"].cast<std::string>();
  plan.until = dict["until"].cast<std::uint32_t>();
  plan.on_trial = dict["on_trial"].cast<bool>();
  plan.predicted_s = dict["predicted_s"].cast<double>();
  plan.uncompressed_s = dict["uncompressed_s"].cast<double>();
  plan.payload_bytes = dict["payload_bytes"].cast<std::uint64_t>();
  plan.measured_inter_s_per_byte = dict["measured_inter_s_per_byte"].cast<double>();
  plan.measured_intra_s_per_byte = dict["measured_intra_s_per_byte"].cast<double>();
  plan.measured_encode_s_per_byte = dict["measured_encode_s_per_byte"].cast<double>();
  plan.measured_decode_s_per_byte = dict["measured_decode_s_per_byte"].cast<double>();
  return plan;
}

}  // namespace casync
