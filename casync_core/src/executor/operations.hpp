#pragma once

#include <cstdint>
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
  Operation& at(std::uint32_t handle) const { return *by_handle_[handle]; }
  /// The operation is over: its handle may be used again.
  Operation& remove(std::uint32_t handle) {
    free_.push_back(handle);
    return *by_handle_[handle];
  }

 private:
  std::vector<Operation*> by_handle_;
  std::vector<std::uint32_t> free_;
};

}  // namespace casync
