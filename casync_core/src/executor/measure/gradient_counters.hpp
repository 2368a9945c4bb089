#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "casync/metrics.hpp"
#include "executor/measure/counters.hpp"
#include "executor/measure/run_meter.hpp"
#include "executor/operation.hpp"

namespace casync {

/// The counters behind Metrics::gradients: what was predicted for each gradient, and what it took. As in a Counters,
/// the thread that drives the Engine writes, and any thread may read meanwhile.
class GradientCounters {
 public:
  void begun(const action::Begin& run, const Definition& definition, Nanoseconds now);
  /// The run has ended well, and its gradient was ready so long after the step's beginning. Other runs are passed over.
  void ended(std::uint32_t instance, Nanoseconds ready, const RunMeter::Encoded& encoded, Nanoseconds now);
  /// The gradient has no runs any more, and its row goes.
  void forget(const Definition& definition);
  void read(std::vector<GradientMetrics>& gradients) const;

 private:
  struct Row {
    explicit Row(const std::string& name) : tensor(name) {}
    const std::string tensor;
    Count operations, time, predicted, ready, encoded_bytes, payload_bytes;
    Count plan_operations, plan_time;  // with the plan that it has
    const TaskGraph* graph = nullptr;  // is only compared: it may be gone
  };
  struct Run {
    Row* row = nullptr;  // null: it reduces nothing
    Nanoseconds begun = 0;
    Nanoseconds predicted = 0;
    bool synchronises = false;  // else it holds its gradient
  };

  mutable std::mutex growth_;  // guards the length of rows_
  std::list<Row> rows_;        // stable addresses
  std::unordered_map<const Definition*, std::list<Row>::iterator> row_of_;
  std::vector<Run> runs_;  // by instance
};

}  // namespace casync
