#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/event.hpp"
#include "executor/kept.hpp"
#include "executor/operation.hpp"
#include "task/template.hpp"

namespace casync {

/// The executor's memory: slots of running instances, recycled by size, and what is kept of gradients, which outlives
/// them. The Engine bounds the slots (Admission); this class only holds them. Used by the progress thread alone, except
/// residuals and state arrays, which workers write, each in its own partition.
class Memory {
 public:
  void begin(const action::Begin& run, Operation& operation);
  void reserve(std::uint32_t instance, std::uint32_t partition);
  void release(std::uint32_t instance, std::uint32_t partition);
  /// `slots_in_use`: transfers may still touch the slots, which then stay until the session's end.
  void finish(std::uint32_t instance, bool slots_in_use);

  Operation& operation(std::uint32_t instance) { return *instances_[instance].operation; }
  /// What `instance` runs or, if it is over, has run last: a worker may still come back with a task of it.
  const Template& shape(std::uint32_t instance) const { return *instances_[instance].shape; }
  /// Which step of the gradient it is, as all ranks count.
  std::uint32_t step(std::uint32_t instance) const { return instances_[instance].step; }
  bool active(std::uint32_t instance) const {
    return instance < instances_.size() && instances_[instance].operation != nullptr;
  }

  /// Address of `buffer` over `partition`.
  std::byte* address(std::uint32_t instance, std::uint32_t partition, Buffer buffer);
  /// Bytes of a slot: its limit at first, then what was written or received.
  std::size_t slot_bytes(std::uint32_t instance, std::uint16_t slot) const {
    return instances_[instance].slots[slot].bytes;
  }
  void set_slot_bytes(std::uint32_t instance, std::uint16_t slot, std::size_t bytes) {
    instances_[instance].slots[slot].bytes = bytes;
  }

  /// What is kept of gradients, by tensor name. An entry stays where it is until it is erased.
  std::unordered_map<std::string, Kept>& kept() { return kept_; }
  /// How many steps of gradient `name` are counted.
  std::uint32_t steps(const std::string& name) const;
  /// Whose values are kept for what `definition` names, as control.hpp says it.
  Settled settled(const Definition& definition) const;
  /// What `instance` uses of it; null: nothing.
  Kept*& kept_of(std::uint32_t instance) { return instances_[instance].kept; }
  /// A stand-in's state arrays: those that all ranks share are the kept ones, its own are forgotten afterwards.
  std::unique_ptr<ScratchState>& stand_in_state(std::uint32_t instance) { return instances_[instance].stand_in_state; }
  /// What another codec held back and has joined the input of `instance`; empty: nothing has.
  FloatArray& carried(std::uint32_t instance) { return instances_[instance].carried; }

  std::size_t slot_memory() const { return held_; }  ///< bytes of slots, in use and kept for reuse
  std::size_t kept_memory() const;                   ///< bytes of residuals and states

 private:
  struct SlotMemory {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::size_t bytes = 0;
  };
  struct Running {
    Operation* operation = nullptr;
    std::shared_ptr<const Template> shape;
    std::uint32_t step = 0;
    std::vector<SlotMemory> slots;
    Kept* kept = nullptr;
    FloatArray carried;
    std::unique_ptr<ScratchState> stand_in_state;
  };
  void give_back(SlotMemory& slot);

  std::vector<Running> instances_;
  std::unordered_map<std::size_t, std::vector<std::unique_ptr<std::byte[]>>> spare_;  // by capacity
  std::size_t spare_bytes_ = 0;
  std::size_t held_ = 0;
  std::unordered_map<std::string, Kept> kept_;
};

}  // namespace casync
