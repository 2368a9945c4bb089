#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "task/template.hpp"

namespace casync {

/// One run of a template: the dependency counters of the task manager (paper: section 3.1). Reused from step to step,
/// so a run allocates nothing once its vectors have grown.
class Instance {
 public:
  void begin(std::shared_ptr<const Template> shape);

  const Template& shape() const { return *shape_; }
  bool has_shape() const { return shape_ != nullptr; }

  /// The partition's memory is there: clears one dependency of each of its tasks. Appends those that became ready.
  void open_partition(std::uint32_t partition, std::vector<std::uint32_t>& ready);
  /// `task` is done. Appends the tasks that became ready; returns true if it was the last of its partition.
  bool complete(std::uint32_t task, std::vector<std::uint32_t>& ready);

  /// `task` is done, but the run ends before it is through: nothing follows from it.
  void note(std::uint32_t task) { done_[task] = true; }

  bool done() const { return remaining_ == 0; }
  bool done(std::uint32_t task) const { return done_[task]; }
  bool armed(std::uint32_t task) const { return pending_[task] == 0; }

  // Of an allreduce that ends before it is through:
  /// Whether the output holds the final value of the partition.
  bool delivered(std::uint32_t partition) const { return done_[shape_->delivery[partition]]; }
  /// The tasks that took from the gradient and this rank's residual what was not delivered: it is in their payloads.
  std::vector<std::uint32_t> taken() const;

 private:
  std::shared_ptr<const Template> shape_;
  std::vector<std::uint32_t> pending_;  // per task: dependencies left
  std::vector<bool> done_;              // per task
  std::vector<std::uint32_t> left_in_partition_;
  std::uint32_t remaining_ = 0;
};

}  // namespace casync
