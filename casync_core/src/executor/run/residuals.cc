#include "executor/run/residuals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "executor/run/workers.hpp"

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

/// Raw elements of a gradient in float32.
std::vector<float> elements_of(const Segment& gradient, Source source) {
  std::vector<float> values(static_cast<std::size_t>(gradient.range.size()));
  if (gradient.dtype == DType::float64) {
    const auto* from = static_cast<const double*>(source.data);
    for (float& value : values) value = static_cast<float>(*from++);
    return values;
  }
  const bool is_float = gradient.dtype == DType::float32;
  source.raw = is_float;  // elements of 16 bits are payloads of the codec that casts to them
  Segment segment;        // of no round: what computes the gradient's later rounds does not read elements
  segment.shape = gradient.shape;
  segment.range = gradient.range;
  segment.sources = {&source, 1};
  segment.raw_out = values.data();
  make_codec(is_float ? "none" : gradient.dtype == DType::float16 ? "fp16" : "bf16")->run(std::span(&segment, 1));
  return values;
}

/// The values of `source` in float32: a payload of `codec`, or raw elements of the gradient.
std::vector<float> values_of(const Codec& codec, const Segment& gradient, const Source& source) {
  if (source.raw) return elements_of(gradient, source);
  std::vector<float> values(static_cast<std::size_t>(gradient.range.size()));
  Segment segment;
  segment.shape = gradient.shape;
  segment.range = gradient.range;
  segment.round = gradient.round;
  segment.previous = gradient.previous;
  segment.name_hash = gradient.name_hash;
  segment.world = gradient.world;
  segment.sources = {&source, 1};
  segment.raw_out = values.data();
  const ScratchState state(codec, gradient);  // decoding may write to it
  segment.state = state.arrays();
  codec.run(std::span(&segment, 1));
  return values;
}

/// What lies in slots, for the host to read: of a run whose slots are a device's, copies.
class AtHome {
 public:
  /// `stream`: the device's; null where slots are the host's.
  explicit AtHome(Stream* stream) : stream_(stream) {}

  std::span<const std::byte> operator()(const void* data, std::size_t bytes) {
    if (stream_ == nullptr) return {static_cast<const std::byte*>(data), bytes};
    copies_.push_back(stream_->look(data, bytes));
    is_lost_ |= copies_.back().size() != bytes;
    return copies_.back();
  }
  /// Something was not there any more, because the device is lost.
  bool is_lost() const { return is_lost_; }

 private:
  Stream* stream_;
  bool is_lost_ = false;
  std::deque<std::vector<std::byte>> copies_;
};

/// Where the codec of `segment` holds back what it did not send, over the segment's range; null: nowhere.
float* place_of(Memory& memory, std::uint32_t instance, const Segment& segment) {
  if (segment.residual != nullptr) return segment.residual;
  float* const pending = memory.kept_of(instance)->pending_array();
  return pending == nullptr ? nullptr : pending + segment.range.begin;
}

/// Takes what waited in `residual` and goes in this step.
Carried take(FloatArray& residual, const TaskGraph& graph) {
  if (residual.empty() || !graph.holds()) return {std::exchange(residual, {}), 0};
  const auto begin = residual.begin() + graph.sent.begin;
  const auto end = residual.begin() + graph.sent.end;
  Carried taken{{begin, end}, graph.sent.begin};
  std::fill(begin, end, 0.0F);
  return taken;
}

/// Adds `left` to the input, with the loss scale that the input has; the sum is in the output, which becomes the input.
void join(Operation& operation, Carried left) {
  const Signature& signature = operation.definition->signature;
  const std::size_t element = size_of(signature.dtype);
  const auto* const input = static_cast<const std::byte*>(operation.input);
  auto* const output = static_cast<std::byte*>(operation.output);
  const std::size_t begin = static_cast<std::size_t>(left.begin) * element;
  const std::size_t bytes = left.values.size() * element;
  for (float& value : left.values) value *= operation.optimizer.loss_scale;
  std::vector<std::byte> converted;
  const void* const converted_left = convert(left.values, signature.dtype, converted);
  const std::array<Source, 2> sources{{{input + begin, bytes, true}, {converted_left, bytes, true}}};
  Segment segment;
  segment.range = {0, static_cast<std::int64_t>(left.values.size())};
  segment.shape = {segment.range.end, 1};
  segment.dtype = signature.dtype;
  segment.sources = sources;
  segment.raw_out = output + begin;
  make_codec("none")->run(std::span(&segment, 1));
  if (input == output) return;
  const std::size_t end = static_cast<std::size_t>(signature.shape.numel()) * element;
  std::copy(input, input + begin, output);
  std::copy(input + begin + bytes, input + end, output + begin + bytes);
  operation.input = operation.output;
}

/// A residual of this gradient, and the state of its codec, with what another codec held back. Nothing is packed.
void begin_with_floats(Memory& memory, const TaskGraph& graph, std::uint32_t instance, const ComputeContext& context,
                       GradientState& kept) {
  Operation& operation = memory.operation(instance);
  const Definition& definition = *operation.definition;
  const Signature& signature = definition.signature;
  const CodecInfo& info = graph.codec->info();
  const auto numel = static_cast<std::size_t>(signature.shape.numel());
  if (!kept.fits(*graph.codec, signature.shape)) {
    if (!kept.restores(*graph.codec)) add_to(kept.residual, kept.pending());
    kept.start(*graph.codec, signature.shape, definition.name, definition.name_hash);
  }
  const bool feeds_back = info.feedback == Feedback::wrapper;
  if (kept.residual.size() != numel) kept.residual = {};  // of a gradient of another shape
  const bool waits = graph.holds() && graph.hold->info().feedback != Feedback::none;
  if (kept.residual.empty() && (feeds_back || waits)) kept.residual.assign(numel, 0.0F);
  memory.kept_of(instance) = &kept;
  if (operation.stands_in) {
    auto state = std::make_unique<ScratchState>(*graph.codec, signature.shape, definition.name_hash, kept);
    memory.stand_in_state(instance) = std::move(state);
    return;
  }
  Carried left = feeds_back ? Carried{} : take(kept.residual, graph);
  if (left.values.empty()) {
    // Nothing waited, or the codec takes it from the residual.
  } else if (float* const pending = kept.pending_array(); pending != nullptr) {
    float* to = pending + left.begin;
    for (const float value : left.values) *to++ += value;
  } else if (signature.kind == OpKind::reducescatter) {
    kept.residual = std::move(left.values);  // the result has no room for a sum over the whole input: it waits
  } else {
    if (context.stream != nullptr) context.stream->fetch(operation);
    join(operation, left);
    if (context.stream != nullptr) context.stream->restore(operation);
    memory.carried(instance) = std::move(left);
  }
  if (context.stream == nullptr) return;
  const auto send = [&](std::span<const float> values) { return context.stream->send(values, operation.by_lane); };
  if (!kept.go_far(send)) context.stream->fetch(operation);  // no room: the host computes it
}

}  // namespace

void take_over(Memory& memory, const TaskGraph& graph, std::uint32_t instance, const ComputeContext& context) {
  Operation& operation = memory.operation(instance);
  const Definition& definition = *operation.definition;
  const Signature& signature = definition.signature;
  const CodecInfo& info = graph.codec->info();
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  if (!reduces(signature.kind) || !sums || !is_floating(signature.dtype)) return;
  if (info.identity && !graph.counts && memory.store().find(definition.name) == nullptr) return;
  GradientState& kept = memory.store()[definition.name];
  kept.count(context.step);
  if (graph.provisional) return;
  const float factor = graph.coefficient.at(context.step);
  const bool fades = factor < 1.0F && !operation.stands_in;
  if (context.stream != nullptr && !fades && kept.is_far() &&
      kept.fits(*graph.codec, signature.shape)) {  // as in the step before
    memory.kept_of(instance) = &kept;
    return;
  }
  kept.come_home();
  if (fades) {
    kept.unpack();
    kept.fade(factor);
  }
  const auto& partitions = graph.workflow.partitions;
  const bool goes_on = info.feedback_bits == 8 && kept.fits(*graph.codec, signature.shape);
  const bool is_packed = kept.packed() != nullptr && kept.packed()->is_of(partitions);
  if (goes_on && is_packed && !operation.stands_in) {  // as in the step before
    memory.kept_of(instance) = &kept;
    return;
  }
  kept.unpack();
  begin_with_floats(memory, graph, instance, context, kept);
  if (info.feedback_bits == 8) kept.pack(partitions, seed_of(definition.name_hash, context.step, context.rank));
}

void give_back(Memory& memory, const Instance& run, std::uint32_t instance, const ComputeContext& context) {
  if (memory.operation(instance).stands_in) return;  // it took nothing
  if (GradientState* const kept = memory.kept_of(instance)) {
    kept->come_home();
    kept->unpack();
  }
  const Workflow& workflow = run.graph().workflow;
  if (Carried& carried = memory.carried(instance); !carried.values.empty()) {
    GradientState& kept = memory.store()[memory.operation(instance).definition->name];
    const TaskGraph& graph = run.graph();
    if (kept.residual.empty()) kept.residual.assign(static_cast<std::size_t>(graph.shape.numel()), 0.0F);
    for (std::uint32_t p = 0; p < workflow.partitions.size(); ++p) {
      const auto [begin, end] = workflow.partitions[p];
      if (run.delivered(p) || begin < graph.sent.begin || begin >= graph.sent.end) continue;
      for (std::int64_t i = begin; i < end; ++i)
        kept.residual[static_cast<std::size_t>(i)] += carried.values[static_cast<std::size_t>(i - carried.begin)];
    }
  }
  Job job;
  for (const std::uint32_t index : run.taken()) {
    prepare(job, memory, run.graph(), instance, index, context);
    Segment& segment = job.segment;
    const Task& task = workflow.tasks[index];
    float* const held_back = place_of(memory, instance, segment);
    if (held_back == nullptr) continue;
    AtHome at_home(memory.operation(instance).by_lane ? context.stream : nullptr);
    const auto payload = at_home(segment.payload.data(), memory.slot_bytes(instance, task.encode_to.slot));
    segment.previous = at_home(segment.previous.data(), segment.previous.size());
    for (std::uint32_t s = 0; s < task.source_count; ++s) {
      Source& source = job.sources[s];
      if (workflow.sources[task.first_source + s].kind == BufferKind::slot)
        source.data = at_home(source.data, source.bytes).data();
    }
    if (at_home.is_lost()) return;
    const std::vector<float> sent = values_of(*job.codec, segment, {payload.data(), payload.size(), false});
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (std::isfinite(sent[i])) held_back[i] += sent[i] / segment.mid;
    }
    const Source* own = nullptr;
    for (std::uint32_t s = 0; s < task.source_count; ++s) {
      if (workflow.sources[task.first_source + s].kind == BufferKind::input) {
        own = &job.sources[s];
        continue;
      }
      const float factor = job.sources[s].raw ? segment.pre : 1.0F;
      const std::vector<float> others = values_of(*job.codec, segment, job.sources[s]);
      for (std::size_t i = 0; i < sent.size(); ++i) {
        if (std::isfinite(sent[i])) held_back[i] -= others[i] * factor;
      }
    }
    const float decay = job.codec->info().feedback_decay;
    if (decay == 1.0F || own == nullptr) continue;
    const std::vector<float> elements = elements_of(segment, *own);
    for (std::size_t i = 0; i < sent.size(); ++i) {  // what is there beside the gradient was decayed
      const float gradient = elements[i] * segment.pre;
      if (std::isfinite(sent[i])) held_back[i] = gradient + (held_back[i] - gradient) / decay;
    }
  }
}

}  // namespace casync
