#include "task/instance.hpp"

#include "casync/error.hpp"

namespace casync {

void Instance::begin(std::shared_ptr<const TaskGraph> graph, bool on_stream) {
  graph_ = std::move(graph);
  on_stream_ = on_stream;
  pending_.assign(graph_->first_dependencies.begin(), graph_->first_dependencies.end());
  launched_.assign(on_stream ? pending_.size() : 0, false);
  done_.assign(pending_.size(), false);
  left_in_partition_.assign(graph_->tasks_of_partition.begin(), graph_->tasks_of_partition.end());
  remaining_ = static_cast<std::uint32_t>(pending_.size());
}

void Instance::open_partition(std::uint32_t partition, std::vector<std::uint32_t>& ready) {
  for (const std::uint32_t task : graph_->members_of[partition]) {
    if (--pending_[task] == 0) ready.push_back(task);
  }
}

/// Whether the edge is one of the stream. Whoever reads a payload must know its length, so where the codec chooses that
/// the host has to see it first.
bool Instance::follows_on_stream(const Task& before, const Task& after) const {
  return on_stream_ && computes(before) && computes(after) && !graph_->codec_chooses_length();
}

void Instance::launch(std::uint32_t task, std::vector<std::uint32_t>& ready) {
  CASYNC_CHECK(on_stream_ && pending_[task] == 0 && !launched_[task] && !done_[task], "task ", task,
               " launched twice, out of turn or on no stream");
  launched_[task] = true;
  const Task& what = graph_->workflow.tasks[task];
  for (std::uint32_t s = 0; s < what.successor_count; ++s) {
    const std::uint32_t successor = graph_->workflow.successors[what.first_successor + s];
    if (!follows_on_stream(what, graph_->workflow.tasks[successor])) continue;
    if (--pending_[successor] == 0) ready.push_back(successor);
  }
}

bool Instance::complete(std::uint32_t task, std::vector<std::uint32_t>& ready) {
  CASYNC_CHECK(pending_[task] == 0 && !done_[task], "task ", task, " completed twice or before its turn");
  done_[task] = true;
  const bool was_launched = on_stream_ && launched_[task];
  const Task& what = graph_->workflow.tasks[task];
  for (std::uint32_t s = 0; s < what.successor_count; ++s) {
    const std::uint32_t successor = graph_->workflow.successors[what.first_successor + s];
    if (was_launched && follows_on_stream(what, graph_->workflow.tasks[successor])) continue;  // released by then
    if (--pending_[successor] == 0) ready.push_back(successor);
  }
  --remaining_;
  return --left_in_partition_[what.partition] == 0;
}

std::vector<std::uint32_t> Instance::taken() const {
  std::vector<std::uint32_t> tasks;
  for (std::uint32_t index = 0; index < done_.size(); ++index) {
    const Task& task = graph_->workflow.tasks[index];
    // Of a codec of several rounds the last one takes from the residual; those before only look at it.
    const bool takes = task.feedback && task.round + std::size_t{1} == graph_->codec->info().rounds.size();
    if (takes && done_[index] && !delivered(task.partition)) tasks.push_back(index);
  }
  return tasks;
}

}  // namespace casync
