#include "executor/compute.hpp"

#include <array>
#include <exception>

namespace casync {
namespace {

struct Factors {
  float pre = 1.0F;
  float mid = 1.0F;
  float post = 1.0F;
};

/// Where the mean's 1/N goes (R4): before the first encode for prescaled codecs, before the owner's encode for the
/// others, and for uncompressed data into the final merge, together with the user's factors.
Factors factors_of(const CodecInfo& codec, const Signature& signature, const Task& task, std::uint32_t members) {
  const bool average = signature.op == ReduceOp::average;
  const float user = signature.prescale * signature.postscale;
  const auto n = static_cast<float>(members);
  Factors factors;
  if (signature.kind != OpKind::allreduce) return factors;
  if (codec.identity) {
    if (task.final) factors.mid = (average ? 1.0F / n : 1.0F) * user;
    return factors;
  }
  if (codec.prescaled) {
    factors.pre = 1.0F / n;
  } else if (task.final) {
    factors.mid = 1.0F / n;
  }
  if (task.deliver) factors.post = (average ? 1.0F : n) * user;
  return factors;
}

}  // namespace

void prepare(Job& job, Memory& memory, const Template& shape, std::uint32_t instance, std::uint32_t task_index,
             const ComputeContext& context) {
  const Task& task = shape.workflow.tasks[task_index];
  const Definition& definition = *memory.operation(instance).definition;
  const Signature& signature = definition.signature;
  const Range range = shape.workflow.partitions[task.partition];
  const std::size_t raw_bytes = static_cast<std::size_t>(range.size()) * size_of(signature.dtype);
  const bool identity = shape.codec->info().identity;

  job.instance = instance;
  job.task = task_index;
  job.codec = shape.codec.get();
  job.sources.clear();
  for (std::uint32_t s = 0; s < task.source_count; ++s) {
    const Buffer buffer = shape.workflow.sources[task.first_source + s];
    const bool raw = buffer.place != Place::slot || shape.workflow.slots[buffer.slot].raw;
    const std::size_t bytes = buffer.place == Place::slot ? memory.slot_bytes(instance, buffer.slot) : raw_bytes;
    job.sources.push_back({memory.address(instance, task.partition, buffer), bytes, raw});
  }
  job.weight = raw_bytes * task.source_count;

  const Factors factors = factors_of(shape.codec->info(), signature, task, context.members);
  Segment& segment = job.segment;
  segment = {};
  segment.shape = shape.shape;
  segment.dtype = signature.dtype;
  segment.range = range;
  segment.name_hash = definition.name_hash;
  segment.sequence = context.sequence;
  segment.rank = context.rank;
  segment.role = task.role;
  segment.round = task.round;
  segment.sources = job.sources;
  segment.op = identity && signature.op != ReduceOp::average ? signature.op : ReduceOp::sum;
  segment.pre = factors.pre;
  segment.mid = factors.mid;
  segment.post = factors.post;
  if (task.previous.place == Place::slot) {
    segment.previous = {memory.address(instance, task.partition, task.previous),
                        memory.slot_bytes(instance, task.previous.slot)};
  }
  if (task.feedback && context.contents) segment.residual = memory.residual(definition).data() + range.begin;
  if (task.encode_to.place == Place::slot) {
    segment.payload = {memory.address(instance, task.partition, task.encode_to),
                       shape.workflow.slots[task.encode_to.slot].bytes};
  }
  if (task.write_to.place == Place::output) segment.raw_out = memory.address(instance, task.partition, task.write_to);
}

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
  memory.residuals().erase(left);
}

std::string Job::run() {
  try {
    if (trial != nullptr) {
      trial->run();
    } else {
      codec->run(std::span(&segment, 1));
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace casync
