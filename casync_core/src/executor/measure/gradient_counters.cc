#include "executor/measure/gradient_counters.hpp"

#include <utility>

namespace casync {

void GradientCounters::begun(const action::Begin& run, const Definition& definition, Nanoseconds now) {
  if (run.instance >= runs_.size()) runs_.resize(run.instance + 1);
  runs_[run.instance] = {};
  if (!reduces(definition.signature.kind)) return;
  auto at = row_of_.find(&definition);
  if (at == row_of_.end()) {
    const std::lock_guard lock(growth_);
    at = row_of_.emplace(&definition, rows_.emplace(rows_.end(), definition.name)).first;
  }
  Row* const row = &*at->second;
  const auto predicted = static_cast<Nanoseconds>(run.plan.predicted_s * run.graph->part_sent() * 1e9);
  if (run.graph->turn > 0) {  // the first turn of a plan stands for all: in others nothing may be sent
    runs_[run.instance] = {row, now, predicted, false};
    return;
  }
  if (row->graph != run.graph.get()) {
    row->graph = run.graph.get();
    row->plan_operations.set(0);
    row->plan_time.set(0);
  }
  runs_[run.instance] = {row, now, predicted, true};
}

void GradientCounters::ended(std::uint32_t instance, Nanoseconds ready, const RunMeter::Encoded& encoded,
                             Nanoseconds now) {
  const auto [row, begun, predicted, synchronises] = std::exchange(runs_[instance], {});
  if (row == nullptr) return;
  const auto time = static_cast<std::uint64_t>(now - begun);
  row->operations.add(1);
  row->time.add(time);
  row->predicted.add(static_cast<std::uint64_t>(predicted));
  row->ready.add(static_cast<std::uint64_t>(ready));
  row->encoded_bytes.add(encoded.raw_bytes);
  row->payload_bytes.add(encoded.payload_bytes);
  if (!synchronises) return;
  row->plan_operations.add(1);
  row->plan_time.add(time);
}

void GradientCounters::forget(const Definition& definition) {
  const auto at = row_of_.find(&definition);
  if (at == row_of_.end()) return;
  const std::lock_guard lock(growth_);
  rows_.erase(at->second);
  row_of_.erase(at);
}

void GradientCounters::read(std::vector<GradientMetrics>& gradients) const {
  const std::lock_guard lock(growth_);
  for (const Row& row : rows_) {
    const auto time = [](const Count& count) { return static_cast<Nanoseconds>(count.get()); };
    const std::uint64_t of_plan = row.plan_operations.get();
    gradients.push_back({row.tensor, row.operations.get(), time(row.time), time(row.predicted), time(row.ready),
                         row.encoded_bytes.get(), row.payload_bytes.get(),
                         of_plan == 0 ? 0 : time(row.plan_time) / static_cast<Nanoseconds>(of_plan)});
  }
}

}  // namespace casync
