#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/event.hpp"
#include "executor/memory/gradient_state.hpp"
#include "executor/memory/slot_pool.hpp"
#include "executor/memory/state_store.hpp"
#include "executor/operation.hpp"
#include "task/task_graph.hpp"

namespace casync {

/// What the tasks of running instances read and write: the program's memory, slots, and what is kept of the gradient.
/// The Engine bounds the slots (Admission); here they are only held. Used by the progress thread alone.
class Memory {
 public:
  /// Bytes of spare slots.
  static constexpr std::size_t kKeep = 32 << 20;
  /// Likewise, of pinned memory and of a device's: to ask for either takes longer than to copy.
  static constexpr std::size_t kKeepOfDevice = 512 << 20;

  /// From now on there is memory for what runs on a stream, and for what goes by the lane of its device.
  void add(Allocator& shared, Allocator& devices) {
    shared_.emplace(shared, kKeepOfDevice);
    devices_.emplace(devices, kKeepOfDevice);
  }

  void begin(const action::Begin& run, Operation& operation);
  void reserve(std::uint32_t instance, std::uint32_t partition);
  void release(std::uint32_t instance, std::uint32_t partition);
  /// `slots_in_use`: transfers may still touch the slots, which then stay until the session's end.
  void finish(std::uint32_t instance, bool slots_in_use);

  Operation& operation(std::uint32_t instance) { return *instances_[instance].operation; }
  /// What `instance` runs or, if it is over, has run last: a worker may still come back with a task of it.
  const TaskGraph& graph(std::uint32_t instance) const { return *instances_[instance].graph; }
  /// Which step of the gradient it is, as all ranks count.
  std::uint32_t step(std::uint32_t instance) const { return instances_[instance].step; }
  bool active(std::uint32_t instance) const {
    return instance < instances_.size() && instances_[instance].operation != nullptr;
  }

  /// Address of `buffer` over `partition`.
  std::byte* address(std::uint32_t instance, std::uint32_t partition, Buffer buffer);
  /// The first `bytes` of it, which are sent or received.
  MemoryRef message(std::uint32_t instance, std::uint32_t partition, Buffer buffer, std::size_t bytes) {
    const bool by_lane = instances_[instance].operation->by_lane;
    return {address(instance, partition, buffer), bytes, by_lane ? MemoryKind::device : MemoryKind::host};
  }
  /// Bytes of a slot: its limit at first, then what was written or received.
  std::size_t slot_bytes(std::uint32_t instance, std::uint16_t slot) const {
    return instances_[instance].slots[slot].bytes;
  }
  void set_slot_bytes(std::uint32_t instance, std::uint16_t slot, std::size_t bytes) {
    instances_[instance].slots[slot].bytes = bytes;
  }

  StateStore& store() { return store_; }
  const StateStore& store() const { return store_; }
  /// What `instance` uses of it; null: nothing.
  GradientState*& kept_of(std::uint32_t instance) { return instances_[instance].kept; }
  /// A stand-in's state arrays: those that all ranks share are the kept ones, its own are forgotten afterwards.
  std::unique_ptr<ScratchState>& stand_in_state(std::uint32_t instance) { return instances_[instance].stand_in_state; }
  /// What was held back before and has joined the input of `instance`.
  Carried& carried(std::uint32_t instance) { return instances_[instance].carried; }

  std::size_t slot_memory() const {
    return slots_.held() + (shared_ ? shared_->held() : 0) + (devices_ ? devices_->held() : 0);
  }

 private:
  struct Reserved : SlotPool::Slot {
    std::size_t bytes = 0;
  };
  struct Running {
    Operation* operation = nullptr;
    std::shared_ptr<const TaskGraph> graph;
    std::uint32_t step = 0;
    std::vector<Reserved> slots;
    SlotPool* pool = nullptr;  // of the slots
    GradientState* kept = nullptr;
    Carried carried;
    std::unique_ptr<ScratchState> stand_in_state;
  };

  std::vector<Running> instances_;
  SlotPool slots_{host_memory(), kKeep};
  std::optional<SlotPool> shared_;   // what a device reaches, too
  std::optional<SlotPool> devices_;  // what it alone reaches
  StateStore store_;
};

}  // namespace casync
