#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/operation.hpp"
#include "task/template.hpp"

namespace casync {

/// The executor's memory: slots of running instances, recycled by size, and the residuals that outlive them.
/// The Engine bounds the slots (Admission); this class only holds them. Used by the progress thread alone, except
/// `residual` ranges, which workers write, each its own partition.
class Memory {
 public:
  void begin(std::uint32_t instance, const Template& shape, Operation* operation);
  void reserve(std::uint32_t instance, std::uint32_t partition);
  void release(std::uint32_t instance, std::uint32_t partition);
  /// `slots_in_use`: transfers may still touch the slots, which then stay until the session's end.
  void finish(std::uint32_t instance, bool slots_in_use);

  Operation& operation(std::uint32_t instance) { return *instances_[instance].operation; }
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

  /// The residual of a gradient, zero at first use; one float32 per element.
  std::vector<float>& residual(const Definition& definition);
  std::unordered_map<std::string, std::vector<float>>& residuals() { return residuals_; }
  /// The residual that has joined the input of `instance`; empty: none has.
  std::vector<float>& carried(std::uint32_t instance) { return instances_[instance].carried; }

  std::size_t slot_memory() const { return held_; }  ///< bytes of slots, in use and kept for reuse
  std::size_t residual_memory() const;

 private:
  struct SlotMemory {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::size_t bytes = 0;
  };
  struct Running {
    Operation* operation = nullptr;
    const Template* shape = nullptr;
    std::vector<SlotMemory> slots;
    std::vector<float> carried;
  };
  void give_back(SlotMemory& slot);

  std::vector<Running> instances_;
  std::unordered_map<std::size_t, std::vector<std::unique_ptr<std::byte[]>>> spare_;  // by capacity
  std::size_t spare_bytes_ = 0;
  std::size_t held_ = 0;
  std::unordered_map<std::string, std::vector<float>> residuals_;
};

}  // namespace casync
