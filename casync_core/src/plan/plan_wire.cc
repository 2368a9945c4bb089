#include "plan/plan_wire.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace casync {
namespace {

constexpr std::array kNumbers{&GradientPlan::predicted_s,
                              &GradientPlan::uncompressed_s,
                              &GradientPlan::measured_inter_s_per_byte,
                              &GradientPlan::measured_intra_s_per_byte,
                              &GradientPlan::measured_encode_s_per_byte,
                              &GradientPlan::measured_decode_s_per_byte};

enum class Flag : std::uint8_t { no = 0, yes = 1 };

/// An enum is on the wire as its one byte; `last` is the highest number that has a name.
template <typename Enum>
Enum get_enum(ByteReader& reader, Enum last, const char* field) {
  const auto number = reader.get<std::uint8_t>();
  if (number > static_cast<std::uint8_t>(last)) {
    throw CorruptPayload(detail::concat(field, " ", static_cast<int>(number), " has no meaning; the highest known is ",
                                        static_cast<int>(last)));
  }
  return static_cast<Enum>(number);
}

Shape get_shape(ByteReader& reader) {
  Shape shape;
  shape.rows = reader.get<std::int64_t>();
  shape.cols = reader.get<std::int64_t>();
  const bool fits = shape.rows >= 0 && shape.cols >= 0 &&
                    (shape.cols == 0 || shape.rows <= std::numeric_limits<std::int64_t>::max() / 8 / shape.cols);
  if (!fits) throw CorruptPayload(detail::concat("a shape of ", shape.rows, " x ", shape.cols, " elements cannot be"));
  return shape;
}

}  // namespace

std::optional<std::string> why_not(const Coefficient& coefficient) {
  if (!(coefficient.init >= 0 && coefficient.init <= 1))
    return detail::concat("init=", coefficient.init, " is not from 0 to 1");
  if (coefficient.ascend_steps == 0) return "ascend_steps=0 is not a whole number from 1 on";
  if (!(coefficient.ascend_range > 0 && coefficient.ascend_range <= 1))
    return detail::concat("ascend_range=", coefficient.ascend_range, " is not above 0 and at most 1");
  return std::nullopt;
}

std::string tensor_of(const Signature& signature) {
  const std::string shape = signature.dims.empty()
                                ? detail::concat("(", signature.shape.rows, ", ", signature.shape.cols, ")")
                                : signature.dims;
  return detail::concat(name_of(signature.dtype), " ", shape);
}

void put(std::vector<std::byte>& out, const GradientPlan& plan) {
  ByteWriter writer(out);
  writer.put_text(plan.topology);
  writer.put_text(plan.codec);
  writer.put(plan.partitions);
  writer.put(plan.first_owner);
  writer.put(plan.period);
  writer.put(plan.offset);
  writer.put(plan.coefficient.init);
  writer.put(plan.coefficient.ascend_steps);
  writer.put(plan.coefficient.ascend_range);
  writer.put(static_cast<std::uint8_t>(plan.priority ? 1 : 0));
  writer.put(plan.priority.value_or(0));
  writer.put(static_cast<std::uint8_t>(plan.on_host ? 1 : 0));
  writer.put_text(plan.tensor);
  writer.put(plan.epoch);
  writer.put_text(plan.reason);
  writer.put(plan.until);
  writer.put(static_cast<std::uint8_t>(plan.on_trial ? 1 : 0));
  for (const auto number : kNumbers) writer.put(plan.*number);
  writer.put(plan.payload_bytes);
}

GradientPlan get_plan(ByteReader& reader) {
  GradientPlan plan;
  plan.topology = reader.get_text();
  plan.codec = reader.get_text();
  plan.partitions = reader.get<std::uint32_t>();
  if (plan.partitions == 0 || plan.partitions > kPartitionLimit)
    throw CorruptPayload(detail::concat("a plan of ", plan.partitions, " partitions cannot be"));
  plan.first_owner = reader.get<std::uint32_t>();
  plan.period = reader.get<std::uint32_t>();
  plan.offset = reader.get<std::uint32_t>();
  if (plan.offset >= plan.period)
    throw CorruptPayload(detail::concat("a plan for step ", plan.offset, " of ", plan.period, " cannot be"));
  plan.coefficient.init = reader.get<double>();
  plan.coefficient.ascend_steps = reader.get<std::uint32_t>();
  plan.coefficient.ascend_range = reader.get<double>();
  if (const auto why = why_not(plan.coefficient))
    throw CorruptPayload(detail::concat("a plan whose coefficient cannot be: ", *why));
  const bool has_priority = get_enum(reader, Flag::yes, "priority") == Flag::yes;
  const auto priority = reader.get<std::int32_t>();
  if (has_priority) plan.priority = priority;
  plan.on_host = get_enum(reader, Flag::yes, "on host") == Flag::yes;
  plan.tensor = reader.get_text();
  plan.epoch = reader.get<std::uint32_t>();
  plan.reason = reader.get_text();
  plan.until = reader.get<std::uint32_t>();
  plan.on_trial = get_enum(reader, Flag::yes, "on trial") == Flag::yes;
  for (const auto number : kNumbers) {
    plan.*number = reader.get<double>();
    if (!std::isfinite(plan.*number) || plan.*number < 0) throw CorruptPayload("a plan with a time that cannot be");
  }
  plan.payload_bytes = reader.get<std::uint64_t>();
  return plan;
}

void put(std::vector<std::byte>& out, const Signature& signature) {
  ByteWriter writer(out);
  writer.put(signature.kind);
  writer.put(signature.dtype);
  writer.put(signature.op);
  writer.put(signature.shape.rows);
  writer.put(signature.shape.cols);
  writer.put(signature.root);
  writer.put(signature.prescale);
  writer.put(signature.postscale);
  writer.put_text(signature.dims);
  writer.put_text(signature.compression);
  writer.put_text(signature.topology);
  writer.put(signature.memory);
  writer.put(signature.priority);
  writer.put(signature.seed);
}

Signature get_signature(ByteReader& reader) {
  Signature signature;
  signature.kind = get_enum(reader, OpKind::join, "operation");
  signature.dtype = get_enum(reader, DType::uint16, "dtype");
  signature.op = get_enum(reader, ReduceOp::product, "reduction");
  signature.shape = get_shape(reader);
  signature.root = reader.get<std::int32_t>();
  signature.prescale = reader.get<float>();
  signature.postscale = reader.get<float>();
  signature.dims = reader.get_text();
  signature.compression = reader.get_text();
  signature.topology = reader.get_text();
  signature.memory = get_enum(reader, MemoryKind::device, "memory");
  signature.priority = reader.get<std::int32_t>();
  signature.seed = reader.get<std::uint32_t>();
  return signature;
}

}  // namespace casync
