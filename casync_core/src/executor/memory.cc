#include "executor/memory.hpp"

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr std::size_t kKeep = 32 << 20;  // spare slots kept for the next step

/// Sizes are rounded up so that partitions of nearly one size share their spare slots.
std::size_t capacity_for(std::size_t bytes) {
  const std::size_t step = bytes <= 4096 ? 256 : bytes <= (256 << 10) ? 16 << 10 : 128 << 10;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void Memory::begin(const action::Begin& run, Operation& operation) {
  if (run.instance >= instances_.size()) instances_.resize(run.instance + 1);
  Running& running = instances_[run.instance];
  const Template& shape = *run.shape;
  running.operation = &operation;
  running.shape = run.shape;
  running.step = run.step;
  running.slots.resize(shape.workflow.slots.size());
  const Signature& signature = operation.definition->signature;
  if (signature.kind == OpKind::allgather || signature.kind == OpKind::alltoall) {
    operation.result.resize(static_cast<std::size_t>(shape.shape.numel()) * size_of(signature.dtype));
    operation.output = operation.result.data();
  }
  operation.result_rows = shape.rows;
}

void Memory::reserve(std::uint32_t instance, std::uint32_t partition) {
  Running& running = instances_[instance];
  const auto& slots = running.shape->workflow.slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].partition != partition) continue;
    SlotMemory& slot = running.slots[i];
    slot.bytes = slots[i].bytes;
    slot.capacity = capacity_for(slot.bytes);
    auto& spare = spare_[slot.capacity];
    if (spare.empty()) {
      slot.memory.reset(new std::byte[slot.capacity]);
      held_ += slot.capacity;
    } else {
      slot.memory = std::move(spare.back());
      spare.pop_back();
      spare_bytes_ -= slot.capacity;
    }
  }
}

void Memory::give_back(SlotMemory& slot) {
  if (slot.memory == nullptr) return;
  if (spare_bytes_ + slot.capacity <= kKeep) {
    spare_bytes_ += slot.capacity;
    spare_[slot.capacity].push_back(std::move(slot.memory));
  } else {
    held_ -= slot.capacity;
  }
  slot.memory.reset();
}

void Memory::release(std::uint32_t instance, std::uint32_t partition) {
  Running& running = instances_[instance];
  const auto& slots = running.shape->workflow.slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].partition == partition) give_back(running.slots[i]);
  }
}

void Memory::finish(std::uint32_t instance, bool slots_in_use) {
  Running& running = instances_[instance];
  for (SlotMemory& slot : running.slots) {
    if (!slots_in_use) give_back(slot);
  }
  running.kept = nullptr;
  running.carried = {};
  running.stand_in_state = nullptr;
  running.operation = nullptr;
}

std::byte* Memory::address(std::uint32_t instance, std::uint32_t partition, Buffer buffer) {
  Running& running = instances_[instance];
  const Layout& layout = running.shape->workflow.layout[partition];
  const std::size_t element = size_of(running.shape->dtype);
  switch (buffer.place) {
    case Place::none:
      return nullptr;
    case Place::input:
      return static_cast<std::byte*>(const_cast<void*>(running.operation->input)) +
             static_cast<std::size_t>(layout.input.begin) * element;
    case Place::output:
      return static_cast<std::byte*>(running.operation->output) +
             static_cast<std::size_t>(layout.output.begin) * element;
    case Place::slot:
      return running.slots[buffer.slot].memory.get();
  }
  return nullptr;
}

std::uint32_t Memory::steps(const std::string& name) const {
  const auto at = kept_.find(name);
  return at == kept_.end() ? 0 : at->second.state().steps;
}

Settled Memory::settled(const Definition& definition) const {
  const auto at = kept_.find(definition.name);
  const bool settled = at != kept_.end() && at->second.agreed(definition.signature.shape);
  return settled ? settled_by(at->second.state().codec) : 0;
}

std::size_t Memory::kept_memory() const {
  std::size_t bytes = 0;
  for (const auto& [name, kept] : kept_) bytes += kept.bytes();
  return bytes;
}

}  // namespace casync
