#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "executor/operation.hpp"

namespace casync {

/// The operations that are submitted and not over, by their handles: what an Engine knows of them. Used by the thread
/// that drives the Engine.
class Operations {
 public:
  std::uint32_t add(Operation& operation) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(by_handle_.size()));
      by_handle_.push_back(nullptr);
    }
    const std::uint32_t handle = free_.back();
    free_.pop_back();
    by_handle_[handle] = &operation;
    return handle;
  }
  bool has(std::uint32_t handle) const { return by_handle_[handle] != nullptr; }
  Operation& at(std::uint32_t handle) const { return *by_handle_[handle]; }
  /// The operation is over, and perhaps gone: its handle may be used again.
  void remove(std::uint32_t handle) {
    free_.push_back(handle);
    by_handle_[handle] = nullptr;
  }
  /// What the Engine has lost: all that are not over. Their handles are not used again.
  std::vector<Operation*> take_all() {
    std::vector<Operation*> left;
    for (Operation*& operation : by_handle_) {
      if (operation != nullptr) left.push_back(std::exchange(operation, nullptr));
    }
    return left;
  }

 private:
  std::vector<Operation*> by_handle_;
  std::vector<std::uint32_t> free_;
};

}  // namespace casync
