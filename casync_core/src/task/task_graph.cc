#include "task/task_graph.hpp"

#include <algorithm>

#include "casync/plan.hpp"

namespace casync {
namespace {

constexpr std::uint64_t key_of(std::uint32_t peer, std::uint32_t tag) {
  return (static_cast<std::uint64_t>(peer) << 32U) | tag;
}

}  // namespace

TaskGraph::TaskGraph(const WorkflowRequest& request)
    : workflow(build_workflow(request)), shape(request.shape), dtype(request.dtype), turn(request.turn) {
  const std::size_t partitions = workflow.partitions.size();
  const Range go = partitions_of(turn, request.period, static_cast<std::uint32_t>(partitions));
  if (request.period == 1) {
    sent = {0, shape.numel()};
  } else if (go.size() > 0) {
    sent = {workflow.partitions[static_cast<std::size_t>(go.begin)].begin,
            workflow.partitions[static_cast<std::size_t>(go.end - 1)].end};
  }
  tasks_of_partition.assign(partitions, 0);
  members_of.resize(partitions);
  slots_of.resize(partitions);
  for (std::size_t s = 0; s < workflow.slots.size(); ++s)
    slots_of[workflow.slots[s].partition].push_back(static_cast<std::uint16_t>(s));
  sends_nonzeros = std::ranges::count(workflow.slots, Form::nonzeros, &Slot::form) > 0;
  credit_peers.resize(partitions);
  delivery.resize(partitions);
  for (std::uint32_t i = 0; i < workflow.tasks.size(); ++i) {
    const Task& task = workflow.tasks[i];
    first_dependencies.push_back(task.dependencies + 1);
    ++tasks_of_partition[task.partition];
    host_only |= task.form != Form::payload || task.again || adds_to_pending(request.codec->info(), task);
    members_of[task.partition].push_back(i);
    if (task.primitive == Primitive::recv) {
      receives_.push_back({key_of(task.peer, task.tag), i});
      if (task.needs_credit) credit_peers[task.partition].push_back(task.peer);
    }
    const bool receives_result = task.primitive == Primitive::recv && task.data.kind == BufferKind::output;
    const bool sends_away = task.primitive == Primitive::send && workflow.layout[task.partition].output.size() == 0;
    if (receives_result || sends_away || task.write_to.kind == BufferKind::output) delivery[task.partition] = i;
    if (task.primitive == Primitive::recv || task.primitive == Primitive::send) {
      largest_message = std::max(largest_message, message_bytes(task));
      smallest_message = std::min(smallest_message, message_bytes(task));
      sends_slots_only &= task.data.kind == BufferKind::slot;
    }
  }
  for (auto& peers : credit_peers) {
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  }
  std::sort(receives_.begin(), receives_.end(), [](const Key& a, const Key& b) { return a.key < b.key; });
}

/// Whether payloads of others join what this rank's codec has not sent yet.
bool TaskGraph::adds_to_pending(const CodecInfo& info, const Task& task) const {
  if (info.feedback != Feedback::own || !task.feedback || task.encode_to.kind == BufferKind::none) return false;
  const auto sources = std::span(workflow.sources).subspan(task.first_source, task.source_count);
  return !std::ranges::all_of(sources, [this](Buffer source) { return raw(source); });
}

std::int64_t TaskGraph::find_recv(std::uint32_t peer, std::uint32_t tag) const {
  const std::uint64_t key = key_of(peer, tag);
  const auto at = std::lower_bound(receives_.begin(), receives_.end(), key,
                                   [](const Key& entry, std::uint64_t wanted) { return entry.key < wanted; });
  return at != receives_.end() && at->key == key ? static_cast<std::int64_t>(at->task) : -1;
}

const Task* TaskGraph::receive_of(const Task& task, std::size_t source) const {
  const Buffer buffer = workflow.sources[task.first_source + source];
  for (const std::uint32_t index : members_of[task.partition]) {
    const Task& other = workflow.tasks[index];
    if (other.primitive == Primitive::recv && other.data == buffer) return &other;
  }
  return nullptr;
}

std::int64_t TaskGraph::sender_of(const Task& task, std::size_t source) const {
  const Task* const receive = receive_of(task, source);
  return receive == nullptr ? -1 : static_cast<std::int64_t>(receive->peer);
}

std::size_t TaskGraph::weight(const Task& task) const {
  // What is settled is settled of the whole gradient, though the task is the first partition's.
  if (task.settles && task.primitive == Primitive::encode) {
    return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  }
  return static_cast<std::size_t>(workflow.partitions[task.partition].size()) * size_of(dtype) * task.source_count;
}

std::size_t TaskGraph::message_bytes(const Task& task) const {
  if (task.data.kind == BufferKind::slot) return workflow.slots[task.data.slot].bytes;
  const Layout& layout = workflow.layout[task.partition];
  const Range& range = task.data.kind == BufferKind::input ? layout.input : layout.output;
  return static_cast<std::size_t>(range.size()) * size_of(dtype);
}

}  // namespace casync
