#include "session/handle_table.hpp"

namespace casync {

HandleTable::Entry& HandleTable::add() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    entries_.emplace_back().generation = first_generation;
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[index];
  entry.operation.emplace().index = index;
  return entry;
}

Session::Handle HandleTable::handle_of(const Entry& entry) const {
  const Session::Handle generation = entry.generation & kIndexMask;
  return (Session::Handle{session_} << kHandleBits) | (generation << kIndexBits) | entry.operation->index;
}

HandleTable::Entry* HandleTable::find(Session::Handle handle) {
  const auto index = static_cast<std::uint32_t>(handle & kIndexMask);
  if (index >= entries_.size()) return nullptr;
  Entry& entry = entries_[index];
  return entry.operation && handle_of(entry) == handle ? &entry : nullptr;
}

void HandleTable::release(Entry& entry) {
  free_.push_back(entry.operation->index);
  entry.operation.reset();
  ++entry.generation;
}

void HandleTable::begin_later_ones_after(std::uint32_t generation) {
  std::uint32_t before = first_generation;
  while (before <= generation && !first_generation.compare_exchange_weak(before, generation + 1)) {
  }
}

}  // namespace casync
