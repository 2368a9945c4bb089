#include "executor/memory/memory.hpp"

namespace casync {

void Memory::begin(const action::Begin& run, Operation& operation) {
  if (run.instance >= instances_.size()) instances_.resize(run.instance + 1);
  Running& running = instances_[run.instance];
  const TaskGraph& graph = *run.graph;
  running.operation = &operation;
  running.graph = run.graph;
  running.step = run.step;
  running.slots.resize(graph.workflow.slots.size());
  operation.by_lane = run.by_lane;
  running.pool = run.by_lane ? &devices_.value() : operation.on_stream ? &shared_.value() : &slots_;
  const Signature& signature = operation.definition->signature;
  if (signature.kind == OpKind::allgather || signature.kind == OpKind::alltoall) {
    operation.result.resize(static_cast<std::size_t>(graph.shape.numel()) * size_of(signature.dtype));
    operation.output = operation.result.data();
  }
  operation.result_rows = graph.rows;
}

void Memory::reserve(std::uint32_t instance, std::uint32_t partition) {
  Running& running = instances_[instance];
  for (const std::uint16_t slot : running.graph->slots_of[partition]) {
    const std::size_t bytes = running.graph->workflow.slots[slot].bytes;
    running.slots[slot] = {running.pool->take(bytes), bytes};
  }
}

void Memory::release(std::uint32_t instance, std::uint32_t partition) {
  Running& running = instances_[instance];
  for (const std::uint16_t slot : running.graph->slots_of[partition]) running.pool->give_back(running.slots[slot]);
}

void Memory::finish(std::uint32_t instance, bool slots_in_use) {
  Running& running = instances_[instance];
  for (Reserved& slot : running.slots) {
    if (!slots_in_use) running.pool->give_back(slot);
  }
  running.kept = nullptr;
  running.carried = {};
  running.stand_in_state = nullptr;
  running.operation = nullptr;
}

std::byte* Memory::address(std::uint32_t instance, std::uint32_t partition, Buffer buffer) {
  Running& running = instances_[instance];
  const Layout& layout = running.graph->workflow.layout[partition];
  const std::size_t element = size_of(running.graph->dtype);
  switch (buffer.kind) {
    case BufferKind::none:
      return nullptr;
    case BufferKind::input:
      return static_cast<std::byte*>(const_cast<void*>(running.operation->input)) +
             static_cast<std::size_t>(layout.input.begin) * element;
    case BufferKind::output:
      return static_cast<std::byte*>(running.operation->output) +
             static_cast<std::size_t>(layout.output.begin) * element;
    case BufferKind::slot:
      return running.slots[buffer.slot].memory.get();
  }
  return nullptr;
}

}  // namespace casync
