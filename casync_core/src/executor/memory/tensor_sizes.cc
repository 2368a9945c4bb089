#include "executor/memory/tensor_sizes.hpp"

#include <numeric>

namespace casync {

std::uint64_t raw_bytes_of(const Operation& operation) {
  const Signature& signature = operation.definition->signature;
  std::int64_t numel = signature.shape.numel();
  if (signature.kind == OpKind::allgather) numel = operation.rows * signature.shape.cols;
  if (signature.kind == OpKind::alltoall) {
    numel = std::accumulate(operation.splits.begin(), operation.splits.end(), std::int64_t{0}) * signature.shape.cols;
  }
  return static_cast<std::uint64_t>(numel) * size_of(signature.dtype);
}

MessageBytes bytes_of_message(const TaskGraph& graph, const Memory& memory, std::uint32_t instance, const Task& task) {
  const bool in_slot = task.data.kind == BufferKind::slot;
  const std::uint64_t wire = in_slot ? memory.slot_bytes(instance, task.data.slot) : graph.message_bytes(task);
  if (graph.raw(task.data)) return {wire, wire};
  const auto numel = static_cast<std::uint64_t>(graph.workflow.partitions[task.partition].size());
  const std::uint64_t raw = task.round == 0 ? numel * size_of(graph.dtype) : 0;
  const Workflow& workflow = graph.workflow;
  const Slot& slot = workflow.slots[task.data.slot];
  if (slot.form != Form::part) return {raw, wire};
  const std::uint64_t payload = graph.codec->bound(workflow.layout[task.partition].gradient, graph.dtype,
                                                   workflow.coded(task.partition), slot.round);
  return {slot.round == 0 ? raw * wire / payload : 0, wire};
}

}  // namespace casync
