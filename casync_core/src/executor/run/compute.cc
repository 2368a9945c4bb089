#include "executor/run/compute.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"

namespace casync {
namespace {

constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ULL;  // spreads small numbers over all bits

struct Factors {
  float pre = 1.0F;
  float mid = 1.0F;
  float post = 1.0F;
};

/// Where the mean's 1/N goes: before the first encode for prescaled codecs, before the owner's encode for the
/// others, and for uncompressed data into the final merge. A codec that averages by itself takes none, but its average
/// is over `contributions`, each of which may be the sum of several members'. Adasum has no mean. A codec that keeps
/// something of a gradient sees it without the loss scale, which changes. Raw elements that go on to another rank are
/// as the user gave them, so what the first encode would take from them is given back. The user's factors are the
/// adaptor's business.
Factors factors_of(const CodecInfo& codec, const Signature& signature, const Task& task, std::uint32_t members,
                   std::uint32_t contributions, float loss_scale) {
  const bool average = signature.op == ReduceOp::average;
  const auto n = signature.op == ReduceOp::adasum ? 1.0F : static_cast<float>(members);  // it is no sum
  Factors factors;
  if (!reduces(signature.kind) || task.again) return factors;
  if (task.form == Form::held) return {.pre = 1.0F / loss_scale};
  if (codec.identity || task.form == Form::elements) {
    if (task.final && average) factors.mid = 1.0F / n;
    return factors;
  }
  const bool ends = task.final || task.primitive == Primitive::decode;
  const bool is_result = task.deliver || (ends && task.write_to.kind == BufferKind::slot);
  if (is_result) factors.post = (average ? 1.0F : n) * loss_scale;
  if (task.form != Form::payload) {  // what it is made of has its factors
    const bool mean = task.final && codec.rounds[task.round].merge == Merge::mean;
    return {.mid = mean ? 1.0F / static_cast<float>(contributions) : 1.0F};
  }
  factors.pre = 1.0F / loss_scale;
  if (merges_payloads(codec)) {
    factors.post *= static_cast<float>(contributions) / n;
    return factors;
  }
  if (codec.prescaled) {
    factors.pre /= n;
  } else if (task.final) {
    factors.mid = 1.0F / n;
  }
  if (!is_result) factors.post = 1.0F / factors.pre;
  return factors;
}

/// Returns the factors that made a result of the sum of contributions: mid and post.
Factors factors_of_result(const CodecInfo& codec, const Signature& signature, Task task, std::uint32_t members,
                          std::uint32_t contributions, float loss_scale) {
  task.again = false;
  task.final = task.deliver = true;
  return factors_of(codec, signature, task, members, contributions, loss_scale);
}

/// The segment is one over the elements of a payload. Where a slot has them all, the task's are some of them.
void take_part(Job& job, Memory& memory, const TaskGraph& graph, std::uint32_t instance, const Task& task) {
  const Round& round = graph.codec->info().rounds[task.round];
  const std::size_t element = size_of(round.element);
  const auto place_of = [&](Buffer buffer) {
    const bool has_all = graph.workflow.slots[buffer.slot].form == Form::payload;
    return memory.address(instance, task.partition, buffer) +
           (has_all ? static_cast<std::size_t>(task.elements.begin) * element : 0);
  };
  for (std::size_t s = 0; s < job.sources.size(); ++s) {
    job.sources[s] = {place_of(graph.workflow.sources[task.first_source + s]),
                      static_cast<std::size_t>(task.elements.size()) * element, true};
  }
  Segment& segment = job.segment;
  segment.shape = {task.elements.end, 1};
  segment.dtype = round.element;
  segment.range = task.elements;
  segment.round = 0;
  segment.op = op_of(round.merge);
  segment.raw_out = place_of(task.write_to);
}

}  // namespace

void prepare(Job& job, Memory& memory, const TaskGraph& graph, std::uint32_t instance, std::uint32_t task_index,
             const ComputeContext& context) {
  const Task& task = graph.workflow.tasks[task_index];
  const Operation& operation = memory.operation(instance);
  const Definition& definition = *operation.definition;
  const Signature& signature = definition.signature;
  const Range range = graph.workflow.partitions[task.partition];
  const Layout& layout = graph.workflow.layout[task.partition];
  const std::size_t raw_bytes = static_cast<std::size_t>(range.size()) * size_of(signature.dtype);
  const bool identity = graph.codec->info().identity;

  job.instance = instance;
  job.task = task_index;
  job.primitive = task.primitive;
  job.time = 0;
  job.timed_jobs = 0;
  job.codec = &graph.codec_of(task);
  job.device_failed = false;
  job.on_device = operation.on_stream && !operation.fetched;
  job.by_lane = operation.by_lane;
  job.refused = Job::kNone;
  job.nonfinite.clear();
  job.packed = nullptr;
  job.partition = task.partition;
  job.settles = task.settles;
  job.again = task.again;
  job.settled = false;
  job.sources.clear();
  job.is_users.clear();
  job.result =
      operation.output == nullptr ? nullptr : memory.address(instance, task.partition, {BufferKind::output, 0});
  for (std::uint32_t s = 0; s < task.source_count; ++s) {
    const Buffer buffer = graph.workflow.sources[task.first_source + s];
    const bool raw = graph.raw(buffer);
    const std::size_t bytes = buffer.kind == BufferKind::slot ? memory.slot_bytes(instance, buffer.slot) : raw_bytes;
    job.sources.push_back({memory.address(instance, task.partition, buffer), bytes, raw});
    job.is_users.push_back(buffer.kind != BufferKind::slot);
  }
  job.weight = graph.weight(task);
  if (task.settles && task.primitive == Primitive::encode) {
    job.sources.assign(1, {operation.input, job.weight, true});
  }

  GradientState* const kept = memory.kept_of(instance);
  const bool keeps = task.form == Form::held || graph.codec->info().feedback != Feedback::none ||
                     (kept != nullptr && !kept->arrays().empty());
  const float loss_scale = keeps ? operation.optimizer.loss_scale : 1.0F;
  const Factors factors =
      factors_of(graph.codec->info(), signature, task, context.members, graph.workflow.contributions, loss_scale);
  Segment& segment = job.segment;
  segment = {};
  segment.shape = layout.gradient;
  segment.dtype = signature.dtype;
  segment.range = task.settles ? Range{0, graph.shape.numel()} : graph.workflow.coded(task.partition);
  // Gradients that begin at other elements draw other random numbers.
  segment.name_hash = definition.name_hash + static_cast<std::uint64_t>(layout.gradient_begin) * kGoldenRatio;
  segment.sequence = context.step;
  segment.rank = task.again ? context.members : context.rank;  // all ranks draw the same, and as no rank does
  segment.role = task.role;
  segment.round = task.round;
  segment.sources = job.sources;
  segment.op = signature.op != ReduceOp::average && (identity || task.final) ? signature.op : ReduceOp::sum;
  segment.pre = factors.pre;
  segment.mid = factors.mid;
  segment.post = factors.post;
  if (task.previous.kind == BufferKind::slot) {
    segment.previous = {memory.address(instance, task.partition, task.previous),
                        memory.slot_bytes(instance, task.previous.slot)};
  }
  segment.world = graph.workflow.contributions;
  segment.lr = operation.optimizer.lr;
  segment.momentum = operation.optimizer.momentum;
  segment.nesterov = operation.optimizer.nesterov;
  job.held_back = {};
  if (kept != nullptr && (task.form == Form::payload || task.form == Form::held)) {
    const ScratchState* const forgotten = memory.stand_in_state(instance).get();
    if (task.form == Form::payload) segment.state = forgotten != nullptr ? forgotten->arrays() : kept->arrays();
    const bool feeds_back = task.feedback && !operation.stands_in && kept->has_residual();
    if (feeds_back) job.packed = kept->packed();
    if (feeds_back && job.packed == nullptr) segment.residual = kept->residual_data() + range.begin;
    if (task.holds_back && !operation.stands_in && kept->has_residual()) {
      const Factors of_result = factors_of_result(graph.codec->info(), signature, task, context.members,
                                                  graph.workflow.contributions, loss_scale);
      job.packed = kept->packed();
      job.held_back = {job.packed != nullptr ? nullptr : kept->residual_data() + range.begin,
                       1.0F / (of_result.mid * of_result.post)};
    }
  }
  if (task.encode_to.kind == BufferKind::slot) {
    segment.payload = {memory.address(instance, task.partition, task.encode_to),
                       graph.workflow.slots[task.encode_to.slot].bytes};
  }
  if (task.write_to.kind != BufferKind::none) segment.raw_out = memory.address(instance, task.partition, task.write_to);
  if (task.form == Form::part) take_part(job, memory, graph, instance, task);
}

void run_all(std::span<const std::unique_ptr<Job>> jobs, std::vector<std::string>& errors) {
  Nanoseconds begun = steady_now();
  std::size_t timed_jobs = 0, timed_weight = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Job& job = *jobs[i];
    errors.push_back(job.run());
    ++timed_jobs;
    timed_weight += job.weight;
    const Job* const next = i + 1 < jobs.size() ? jobs[i + 1].get() : nullptr;
    if (next != nullptr && next->primitive == job.primitive && next->codec == job.codec) continue;
    const Nanoseconds ended = steady_now();
    job.time = ended - begun;
    job.timed_jobs = std::exchange(timed_jobs, 0);
    job.timed_weight = std::exchange(timed_weight, 0);
    begun = ended;
  }
}

std::string Job::run() {
  try {
    if (trial != nullptr) {
      trial->run();
    } else if (plan_work != nullptr) {
      plan_work->run();
    } else if (settles) {
      settle();
    } else {
      compute();
      if (segment.nonfinite) find_nonfinite();
    }
    return {};
  } catch (const CorruptPayload& error) {
    refused = find_refused();
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Encodes a result that other ranks encode too, so from no residual and from a state that nobody keeps. What it loses
/// joins the residual where this rank holds that back.
void Job::compute_again() {
  const std::unique_ptr<ScratchState> state =
      segment.state.empty() ? nullptr : std::make_unique<ScratchState>(*codec, segment);
  if (state != nullptr) segment.state = state->arrays();
  if (held_back.factor == 0) return codec->run(std::span(&segment, 1));
  static thread_local std::vector<float> lost, residual;
  const auto numel = static_cast<std::size_t>(segment.range.size());
  lost.assign(numel, 0.0F);
  segment.residual = lost.data();
  codec->run(std::span(&segment, 1));
  segment.residual = nullptr;
  float* to = held_back.residual;
  if (packed != nullptr) {
    residual.resize(numel);
    packed->read(partition, residual.data());
    to = residual.data();
  }
  for (std::size_t i = 0; i < numel; ++i) to[i] += lost[i] * held_back.factor;
  if (packed != nullptr) packed->write(partition, to, seed_of(segment.name_hash, segment.sequence, segment.rank));
}

/// A residual that is packed is one of floats meanwhile. The last round writes it.
void Job::compute() {
  if (again) return compute_again();
  if (packed == nullptr) return codec->run(std::span(&segment, 1));
  static thread_local std::vector<float> residual;
  residual.resize(static_cast<std::size_t>(packed->size(partition)));
  packed->read(partition, residual.data());
  segment.residual = residual.data();
  codec->run(std::span(&segment, 1));
  segment.residual = nullptr;
  if (segment.round + std::size_t{1} < codec->info().rounds.size()) return;
  packed->write(partition, residual.data(), seed_of(segment.name_hash, segment.sequence, segment.rank));
}

/// Writes this rank's proposal to the payload; or takes the mean of all proposals, in float32 in member order. Where
/// that is not finite, as with a NaN in some rank's gradient, nothing is settled: the next run tries again.
void Job::settle() {
  std::vector<float> values(static_cast<std::size_t>(codec->agreed()), 0.0F);
  if (!segment.payload.empty()) {
    codec->propose(segment, values);
    std::memcpy(segment.payload.data(), values.data(), segment.payload.size());
    segment.payload_bytes = segment.payload.size();
    return;
  }
  for (const Source& proposal : sources) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      float value = 0;
      std::memcpy(&value, static_cast<const std::byte*>(proposal.data) + i * sizeof(float), sizeof(float));
      values[i] += value;
    }
  }
  for (float& value : values) value /= static_cast<float>(sources.size());
  settled = std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  if (!settled) return;
  segment.sources = {};
  codec->agree(segment, values);
}

/// The segment with one of its sources, and nothing but its value as the result.
Segment Job::alone(const Source& source, std::span<float* const> state, void* out) const {
  Segment one = segment;
  one.sources = {&source, 1};
  one.residual = nullptr;
  one.state = state;
  one.payload = {};
  one.raw_out = out;
  one.nonfinite = false;
  return one;
}

/// The codec does not say which of the sources it was: the first that it refuses when it is alone.
std::size_t Job::find_refused() const {
  const ScratchState state(*codec, segment);
  std::vector<std::byte> nowhere(static_cast<std::size_t>(segment.range.size()) * size_of(segment.dtype));
  for (std::size_t s = 0; s < sources.size(); ++s) {
    Segment one = alone(sources[s], state.arrays(), nowhere.data());
    try {
      codec->run(std::span(&one, 1));
    } catch (const CorruptPayload&) {
      return s;
    }
  }
  return kNone;
}

/// What this rank encodes is its own contribution, so only sums are taken apart; not those of payloads alone, since
/// whoever encoded them has seen it. A contribution that the result has replaced is to blame if no other source is.
void Job::find_nonfinite() {
  if (sources.size() == 1) {
    nonfinite.push_back(0);
    return;
  }
  const auto is_raw = [](const Source& source) { return source.raw; };
  if (!codec->info().identity && std::ranges::none_of(sources, is_raw)) return;
  static const std::shared_ptr<const Codec> elements = make_codec("none");
  const ScratchState state(*codec, segment);
  std::vector<std::byte> nowhere(static_cast<std::size_t>(segment.range.size()) * size_of(segment.dtype));
  std::size_t replaced = kNone;
  // A codec of several rounds does not decode raw elements.
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].raw && sources[s].data == segment.raw_out) {
      replaced = s;
      continue;
    }
    Segment one = alone(sources[s], state.arrays(), nowhere.data());
    if (sources[s].raw) one.round = 0;
    (sources[s].raw ? *elements : *codec).run(std::span(&one, 1));
    if (one.nonfinite) nonfinite.push_back(s);
  }
  if (nonfinite.empty() && replaced != kNone) nonfinite.push_back(replaced);
}

}  // namespace casync
