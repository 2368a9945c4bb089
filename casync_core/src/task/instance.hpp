#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "task/task_graph.hpp"

namespace casync {

/// One run of a task graph: the dependency counters of the task manager (paper: section 3.1). Reused from step to step,
/// so a run allocates nothing once its vectors have grown.
///
/// Compute tasks may run on a stream of a device, which works off what it is given in order. Then an edge between two
/// of them is one of the stream: the second may be launched as soon as the first one is. All other edges are the
/// host's: what a send reads, or a receive overwrites, must be over. A task is over when it is `complete`, wherever it
/// ran, and memory is given back only then.
class Instance {
 public:
  /// `on_stream`: its compute tasks run on a stream.
  void begin(std::shared_ptr<const TaskGraph> graph, bool on_stream = false);

  const TaskGraph& graph() const { return *graph_; }
  bool has_graph() const { return graph_ != nullptr; }
  bool on_stream() const { return on_stream_; }

  /// The partition's memory is there: clears one dependency of each of its tasks. Appends those that became ready.
  void open_partition(std::uint32_t partition, std::vector<std::uint32_t>& ready);
  /// The compute task `task` is launched on the stream. Appends the tasks that became ready by it.
  void launch(std::uint32_t task, std::vector<std::uint32_t>& ready);
  /// `task` is done. Appends the tasks that became ready; returns true if it was the last of its partition.
  bool complete(std::uint32_t task, std::vector<std::uint32_t>& ready);

  /// `task` is done, but the run ends before it is through: nothing follows from it.
  void note(std::uint32_t task) { done_[task] = true; }

  bool done() const { return remaining_ == 0; }
  bool done(std::uint32_t task) const { return done_[task]; }
  bool armed(std::uint32_t task) const { return pending_[task] == 0; }

  // Of an allreduce that ends before it is through:
  /// Whether the output holds the final value of the partition.
  bool delivered(std::uint32_t partition) const { return done_[graph_->delivery[partition]]; }
  /// The tasks that took from the gradient and this rank's residual what was not delivered: it is in their payloads.
  std::vector<std::uint32_t> taken() const;

 private:
  bool follows_on_stream(const Task& before, const Task& after) const;

  std::shared_ptr<const TaskGraph> graph_;
  bool on_stream_ = false;
  std::vector<std::uint32_t> pending_;  // per task: dependencies left
  std::vector<bool> launched_;          // per task, on a stream
  std::vector<bool> done_;              // per task
  std::vector<std::uint32_t> left_in_partition_;
  std::uint32_t remaining_ = 0;
};

}  // namespace casync
