#include "task/instance.hpp"

#include "casync/error.hpp"

namespace casync {

void Instance::begin(std::shared_ptr<const Template> shape) {
  shape_ = std::move(shape);
  pending_.assign(shape_->first_dependencies.begin(), shape_->first_dependencies.end());
  done_.assign(pending_.size(), false);
  left_in_partition_.assign(shape_->tasks_of_partition.begin(), shape_->tasks_of_partition.end());
  remaining_ = static_cast<std::uint32_t>(pending_.size());
}

void Instance::open_partition(std::uint32_t partition, std::vector<std::uint32_t>& ready) {
  for (const std::uint32_t task : shape_->members_of[partition]) {
    if (--pending_[task] == 0) ready.push_back(task);
  }
}

bool Instance::complete(std::uint32_t task, std::vector<std::uint32_t>& ready) {
  CASYNC_CHECK(pending_[task] == 0 && !done_[task], "task ", task, " completed twice or before its turn");
  done_[task] = true;
  const Task& what = shape_->workflow.tasks[task];
  for (std::uint32_t s = 0; s < what.successor_count; ++s) {
    const std::uint32_t successor = shape_->workflow.successors[what.first_successor + s];
    if (--pending_[successor] == 0) ready.push_back(successor);
  }
  --remaining_;
  return --left_in_partition_[what.partition] == 0;
}

std::vector<std::uint32_t> Instance::taken() const {
  std::vector<std::uint32_t> tasks;
  for (std::uint32_t index = 0; index < done_.size(); ++index) {
    const Task& task = shape_->workflow.tasks[index];
    // Of a codec of several rounds the last one takes from the residual; those before only look at it.
    const bool takes = task.feedback && task.round + std::size_t{1} == shape_->codec->info().rounds.size();
    if (takes && done_[index] && !delivered(task.partition)) tasks.push_back(index);
  }
  return tasks;
}

}  // namespace casync
