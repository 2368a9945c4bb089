#include "executor/residuals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace casync {
namespace {

/// `values` as elements of `dtype`; in `values` itself if they are.
const void* convert(std::span<float> values, DType dtype, std::vector<std::byte>& memory) {
  if (dtype == DType::float32) return values.data();
  memory.resize(values.size() * size_of(dtype));
  if (dtype == DType::float64) {
    auto* to = reinterpret_cast<double*>(memory.data());
    for (const float value : values) *to++ = static_cast<double>(value);
    return memory.data();
  }
  const Source raw{values.data(), values.size_bytes(), true};
  Segment segment;
  segment.shape = {static_cast<std::int64_t>(values.size()), 1};
  segment.range = {0, segment.shape.rows};
  segment.sources = {&raw, 1};
  segment.payload = memory;
  make_codec(dtype == DType::float16 ? "fp16" : "bf16")->run(std::span(&segment, 1));
  return memory.data();
}

/// The values of `source` in float32: a payload of `codec`, or raw elements of the gradient.
std::vector<float> values_of(const Codec& codec, const Segment& gradient, Source source) {
  std::vector<float> values(static_cast<std::size_t>(gradient.range.size()));
  if (source.raw && gradient.dtype == DType::float64) {
    const auto* from = static_cast<const double*>(source.data);
    for (float& value : values) value = static_cast<float>(*from++);
    return values;
  }
  Segment segment;
  segment.shape = gradient.shape;
  segment.range = gradient.range;
  segment.round = gradient.round;
  segment.previous = gradient.previous;
  segment.sources = {&source, 1};
  segment.raw_out = values.data();
  if (source.raw && gradient.dtype != DType::float32) {
    source.raw = false;  // elements of 16 bits are payloads of the codec that casts to them
    make_codec(gradient.dtype == DType::float16 ? "fp16" : "bf16")->run(std::span(&segment, 1));
  } else {
    codec.run(std::span(&segment, 1));
  }
  return values;
}

}  // namespace

void carry_residual(Memory& memory, const Template& shape, std::uint32_t instance) {
  Operation& operation = memory.operation(instance);
  const Signature& signature = operation.definition->signature;
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  if (memory.residuals().empty() || shape.codec->info().feedback != Feedback::none) return;
  if (signature.kind != OpKind::allreduce || !sums || !is_floating(signature.dtype)) return;
  const auto left = memory.residuals().find(operation.definition->name);
  if (left == memory.residuals().end()) return;
  if (left->second.size() != static_cast<std::size_t>(signature.shape.numel())) return;
  std::vector<std::byte> converted;
  const std::size_t bytes = left->second.size() * size_of(signature.dtype);
  const void* residual = convert(left->second, signature.dtype, converted);
  const std::array<Source, 2> sources{{{operation.input, bytes, true}, {residual, bytes, true}}};
  Segment segment;
  segment.shape = signature.shape;
  segment.dtype = signature.dtype;
  segment.range = {0, signature.shape.numel()};
  segment.sources = sources;
  segment.raw_out = operation.output;
  make_codec("none")->run(std::span(&segment, 1));
  operation.input = operation.output;
  memory.carried(instance) = std::move(left->second);
  memory.residuals().erase(left);
}

void give_back(Memory& memory, const Instance& run, std::uint32_t instance, const ComputeContext& context) {
  const Workflow& workflow = run.shape().workflow;
  if (std::vector<float>& carried = memory.carried(instance); !carried.empty()) {
    for (std::uint32_t p = 0; p < workflow.partitions.size(); ++p) {
      const auto [begin, end] = workflow.partitions[p];
      if (run.delivered(p)) std::fill(carried.begin() + begin, carried.begin() + end, 0.0F);
    }
    memory.residuals()[memory.operation(instance).definition->name] = std::move(carried);
  }
  Job job;
  for (const std::uint32_t index : run.taken()) {
    prepare(job, memory, run.shape(), instance, index, context);
    const Segment& segment = job.segment;
    const Task& task = workflow.tasks[index];
    const Source payload{segment.payload.data(), memory.slot_bytes(instance, task.encode_to.slot), false};
    const std::vector<float> sent = values_of(*job.codec, segment, payload);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (std::isfinite(sent[i])) segment.residual[i] += sent[i] / segment.mid;
    }
    for (std::uint32_t s = 0; s < task.source_count; ++s) {
      if (workflow.sources[task.first_source + s].place == Place::input) continue;
      const float factor = job.sources[s].raw ? segment.pre : 1.0F;
      const std::vector<float> others = values_of(*job.codec, segment, job.sources[s]);
      for (std::size_t i = 0; i < sent.size(); ++i) {
        if (std::isfinite(sent[i])) segment.residual[i] -= others[i] * factor;
      }
    }
  }
}

}  // namespace casync
