#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace casync::codec {

/// What a thread keeps between calls, so that none of them allocates once it has met its longest unit. Nothing is
/// written before a codec does: a whole gradient's arrays often have room for far more than they hold.
struct UnitScratch {
  std::vector<const std::byte*> cursors;  ///< of each source, where the current unit begins

  /// Those of one unit.
  float* values_for(std::int64_t n) { return values_.at_least(static_cast<std::size_t>(n)); }
  /// A residual of one unit, decayed.
  float* decayed_for(std::int64_t n) { return decayed_.at_least(static_cast<std::size_t>(n)); }
  /// Memory on a cache line for what generated code needs.
  std::byte* arrays_for(std::int64_t bytes) {
    std::byte* const arrays = arrays_.at_least(static_cast<std::size_t>(bytes) + 64);
    return arrays + (64 - reinterpret_cast<std::uintptr_t>(arrays) % 64) % 64;
  }

  static UnitScratch& of_thread() {
    static thread_local UnitScratch own;
    return own;
  }

 private:
  /// Memory that only grows, and forgets what it held when it does.
  template <typename T>
  struct Room {
    std::unique_ptr<T[]> memory;
    std::size_t size = 0;

    T* at_least(std::size_t wanted) {
      if (wanted > size) {
        memory.reset();
        memory = std::make_unique_for_overwrite<T[]>(wanted);
        size = wanted;
      }
      return memory.get();
    }
  };
  Room<float> values_;
  Room<float> decayed_;
  Room<std::byte> arrays_;
};

}  // namespace casync::codec
