#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace casync::codec {

/// What a thread keeps between calls, so that none of them allocates once it has met its longest unit.
struct UnitScratch {
  std::vector<float> values;              ///< of one unit
  std::vector<const std::byte*> cursors;  ///< of each source, where the current unit begins

  float* values_for(std::int64_t n) {
    values.resize(std::max(values.size(), static_cast<std::size_t>(n)));
    return values.data();
  }
  /// Memory on a cache line for what generated code needs.
  std::byte* arrays_for(std::int64_t bytes) {
    arrays_.resize(std::max(arrays_.size(), static_cast<std::size_t>(bytes) + 64));
    return arrays_.data() + (64 - reinterpret_cast<std::uintptr_t>(arrays_.data()) % 64) % 64;
  }

  static UnitScratch& of_thread() {
    static thread_local UnitScratch own;
    return own;
  }

 private:
  std::vector<std::byte> arrays_;
};

}  // namespace casync::codec
