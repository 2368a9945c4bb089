#include "executor/memory/slot_pool.hpp"

#include <utility>

namespace casync {
namespace {

/// Sizes are rounded up so that partitions of nearly one size share their spare slots.
std::size_t capacity_for(std::size_t bytes) {
  const std::size_t step = bytes <= 4096 ? 256 : bytes <= (256 << 10) ? 16 << 10 : 128 << 10;
  return (bytes + step - 1) / step * step;
}

}  // namespace

Allocator& host_memory() {
  class Host final : public Allocator {
   public:
    std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
    void free(std::byte* memory) override { delete[] memory; }
  };
  static Host host;
  return host;
}

SlotPool::Slot SlotPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  auto& spare = spare_[capacity];
  if (spare.empty()) {
    Slot slot{Bytes(allocator_.allocate(capacity), Free{&allocator_}), capacity};
    if (slot.memory != nullptr) held_ += capacity;
    return slot;
  }
  Slot slot{std::move(spare.back()), capacity};
  spare.pop_back();
  spare_bytes_ -= capacity;
  return slot;
}

void SlotPool::give_back(Slot& slot) {
  if (slot.memory == nullptr) return;
  if (spare_bytes_ + slot.capacity <= keep_) {
    spare_bytes_ += slot.capacity;
    spare_[slot.capacity].push_back(std::move(slot.memory));
  } else {
    held_ -= slot.capacity;
  }
  slot.memory.reset();
}

}  // namespace casync
