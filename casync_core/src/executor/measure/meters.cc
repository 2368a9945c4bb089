#include "executor/measure/meters.hpp"

#include "common/clock.hpp"
#include "executor/memory/tensor_sizes.hpp"

namespace casync {
namespace {

double seconds(Nanoseconds time) { return static_cast<double>(time) * 1e-9; }

}  // namespace

void Meters::measured(const Measurement& measurement) {
  if (wanted()) planning_.measured(measurement);
}

void Meters::measured(const EncodedSize& size) {
  if (wanted()) planning_.encoded(size);
}

void Meters::submitted(Operation& operation) {
  if (!is_step_work(operation)) return;
  if (clock_.begins(operation.step)) {
    operations_took();
    step_submitter_ = operation.submitter;
    const auto step = steps_.next(operation.submitted);
    if (step) planning_.stepped({step->predicted_s, seconds(step->busy), seconds(step->rest)});
  }
  const auto ready = clock_.submitted(operation.step, operation.submitted);
  operation.ready = ready.value_or(0);
  if (ready && wanted()) planning_.ready(ready_gradient(operation, *ready));
}

/// What several threads submit was ready by the clock alone.
ReadyGradient Meters::ready_gradient(const Operation& operation, Nanoseconds since_begin) const {
  const ThreadMoment& begin = step_submitter_;
  const ThreadMoment& end = operation.submitter;
  const bool one_thread = end.thread != nullptr && end.thread == begin.thread;
  const Nanoseconds hindered = one_thread ? end.hindered - begin.hindered : 0;
  const Nanoseconds ready = std::max<Nanoseconds>(since_begin - hindered, 0);
  const Nanoseconds worked = one_thread ? std::clamp<Nanoseconds>(end.worked - begin.worked, 0, ready) : ready;
  return {operation.definition->name, static_cast<double>(raw_bytes_of(operation)), seconds(ready), seconds(worked)};
}

/// A step is over: what its operations asked of a processor besides bodies and jobs.
void Meters::operations_took() {
  const Nanoseconds bodies = across_.total() + inside_.total();
  const Own own = std::exchange(own_, {.bodies_before = bodies});
  if (!wanted() || own.operations == 0) return;
  const auto operations = static_cast<double>(own.operations);
  const Nanoseconds rest = std::max<Nanoseconds>(own.turns - (bodies - own.bodies_before), 0);
  measured({CostKind::operation, {}, static_cast<double>(own.messages) / operations, seconds(rest) / operations});
}

/// A merge that encodes too says nothing of the one nor of the other. What a device computes has no time.
void Meters::computed(const Job& job, const Task& task) {
  const bool plain = !task.settles && !job.on_device && !job.codec->info().identity;
  const bool encodes = task.primitive == Primitive::encode;
  if (!wanted() || !plain || job.timed_jobs == 0 || (!encodes && task.encode_to.kind == BufferKind::slot)) return;
  const auto jobs = static_cast<double>(job.timed_jobs);
  measured({encodes ? CostKind::encode : CostKind::decode, job.codec->info().spec,
            static_cast<double>(job.timed_weight) / jobs, seconds(job.time) / jobs, Basis::gradient});
}

void Meters::encoded(std::uint32_t instance, const Task& task, std::uint64_t bytes) {
  if (task.primitive != Primitive::encode || task.settles) return;
  const std::uint64_t raw = task.round == 0 ? memory_.graph(instance).weight(task) : 0;
  runs_.encoded(instance, raw, bytes);
}

void Meters::begun(const action::Begin& run, const Operation& operation, Nanoseconds now) {
  runs_.begun(run.instance);
  if (run.instance >= predicted_s_.size()) predicted_s_.resize(run.instance + 1);
  predicted_s_[run.instance] = run.plan.predicted_s * run.graph->part_sent();
  if (reduces(operation.definition->signature.kind)) steps_.begun(now);
}

void Meters::failed(const Operation& operation, Nanoseconds now) {
  if (reduces(operation.definition->signature.kind)) steps_.failed(now);
}

void Meters::ended(std::uint32_t instance, const Operation& operation, Nanoseconds now) {
  if (reduces(operation.definition->signature.kind)) steps_.ended(predicted_s_[instance], now);
  ++own_.operations;
  if (!wanted() || !memory_.graph(instance).codec_chooses_length()) return;
  const auto [raw_bytes, payload_bytes] = runs_.of(instance);
  planning_.encoded({operation.definition->name, memory_.graph(instance).codec->info().spec,
                     static_cast<double>(raw_bytes_of(operation)), static_cast<double>(raw_bytes),
                     static_cast<double>(payload_bytes), false});
}

void Meters::body_begun(Rank peer, Nanoseconds now) {
  if (near_[peer]) {
    inside_.begin(steady_now());
  } else {
    between_.begin(now);
    across_.begin(worked());
  }
}

void Meters::body_done(Rank peer, std::size_t bytes, Nanoseconds now) {
  const auto tell = [&](CostKind kind, const std::optional<LinkMeter::Period>& period) {
    if (period) measured({kind, {}, static_cast<double>(period->bytes), seconds(period->time)});
  };
  if (near_[peer]) {
    tell(CostKind::intra, inside_.end(bytes, steady_now()));
  } else {
    tell(CostKind::inter, between_.end(bytes, now));
    tell(CostKind::inter_processor, across_.end(bytes, worked()));
  }
}

void Meters::sent(Rank peer, std::size_t bytes, Nanoseconds begun) {
  if (!wanted()) return;
  ++own_.messages;
  measured({of(peer, CostKind::inter_message, CostKind::intra_message),
            {},
            static_cast<double>(bytes),
            seconds(steady_now() - begun)});
}

void Meters::pong(Rank peer) {
  if (!wanted()) return;
  const auto time = pings_.answered(peer, steady_now());
  if (time) measured({of(peer, CostKind::inter_round_trip, CostKind::intra_round_trip), {}, 0, seconds(*time)});
}

}  // namespace casync
