#include "executor/measure/counters.hpp"

#include <algorithm>
#include <bit>

namespace casync {

static_assert(static_cast<int>(Primitive::encode) == 0 && static_cast<int>(Primitive::decode) == 1 &&
              static_cast<int>(Primitive::merge) == 2);

void HistogramCount::add(Nanoseconds time) {
  const auto begun_microseconds = static_cast<std::uint64_t>(std::max<Nanoseconds>(time, 1) - 1) / 1000;
  const auto bucket = static_cast<std::size_t>(std::bit_width(begun_microseconds));
  counts_[std::min(bucket, Histogram::kBounds)].add(1);
  sum_.add(static_cast<std::uint64_t>(std::max<Nanoseconds>(time, 0)));
}

Histogram HistogramCount::get() const {
  Histogram histogram;
  for (std::size_t i = 0; i < counts_.size(); ++i) histogram.counts[i] = counts_[i].get();
  histogram.sum = static_cast<Nanoseconds>(sum_.get());
  return histogram;
}

Counters::Row& Counters::row_of(const std::string& codec) {
  const auto at = std::ranges::find(rows_, codec, &Row::codec);
  if (at != rows_.end()) return *at;
  const std::lock_guard lock(growth_);
  return rows_.emplace_back(codec, members_);
}

void Counters::begun(std::uint32_t instance, const TaskGraph& graph) {
  if (graph.codec != codec_of_last_) {
    row_of_last_ = &row_of(graph.codec->info().spec);
    codec_of_last_ = graph.codec;
  }
  if (instance >= runs_.size()) runs_.resize(instance + 1);
  runs_[instance] = row_of_last_;
}

void Counters::ended(std::uint32_t instance, std::uint64_t bytes) {
  ended_.add(1);
  runs_[instance]->operations.add(1);
  runs_[instance]->tensor_bytes.add(bytes);
}

void Counters::computed(std::uint32_t instance, Primitive primitive, Nanoseconds time) {
  computed_.add(1);
  Computed& computed = runs_[instance]->computed[static_cast<std::size_t>(primitive)];
  computed.tasks.add(1);
  computed.time.add(static_cast<std::uint64_t>(time));
}

void Counters::look(const Engine& engine, const Memory& memory, const TransportCounters& transport) {
  const Admission& admission = engine.admission();
  partitions_.set(admission.waiting());
  sends_.set(engine.sends_waiting());
  pool_capacity_.set(admission.pool());
  pool_used_.set(admission.used());
  pool_peak_.set(admission.peak());
  pool_held_.set(memory.slot_memory());
  sent_bytes_.set(transport.sent_bytes);
  received_bytes_.set(transport.received_bytes);
  sent_messages_.set(transport.sent_messages);
  received_messages_.set(transport.received_messages);
  const std::span<const Lateness> lateness = engine.lateness();
  for (std::size_t member = 0; member < lateness.size(); ++member) {
    lateness_[member].reports.set(lateness[member].reports);
    lateness_[member].last.set(lateness[member].last);
    lateness_[member].time.set(static_cast<std::uint64_t>(lateness[member].time));
  }
  keeps_lateness_.store(!lateness.empty(), std::memory_order_relaxed);
}

void Counters::read(Metrics& metrics) const {
  // What ends is counted after what begins, so it is read before: no length is negative.
  const auto left = [](const Count& done, const Count& begun) {
    const std::uint64_t before = done.get();
    return std::max(begun.get(), before) - before;
  };
  metrics.failed_operations = failed_.get();
  const std::uint64_t over = ended_.get() + metrics.failed_operations;
  metrics.queues = {std::max(submitted_.get(), over) - over, partitions_.get(), left(computed_, queued_), sends_.get(),
                    left(flowed_, flowing_)};
  metrics.pool = {pool_capacity_.get(), pool_used_.get(), pool_peak_.get(), pool_held_.get()};
  metrics.transport = {sent_bytes_.get(), received_bytes_.get(), sent_messages_.get(), received_messages_.get()};
  for (const Late& late : lateness_) {
    if (!keeps_lateness_.load(std::memory_order_relaxed)) break;
    metrics.lateness.push_back({late.reports.get(), late.last.get(), static_cast<Nanoseconds>(late.time.get())});
  }
  const std::lock_guard lock(growth_);
  for (const Row& row : rows_) {
    CodecMetrics codec{row.codec, row.operations.get(), row.tensor_bytes.get(), {}, {}, {}, {}, {}};
    codec.encode = row.computed[0].get();
    codec.decode = row.computed[1].get();
    codec.merge = row.computed[2].get();
    for (const Exchanged& exchanged : row.sent) codec.sent.push_back(exchanged.get());
    for (const Exchanged& exchanged : row.received) codec.received.push_back(exchanged.get());
    metrics.codecs.push_back(std::move(codec));
  }
}

}  // namespace casync
