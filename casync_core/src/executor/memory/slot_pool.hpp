#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "casync/memory.hpp"

namespace casync {

/// Memory for slots, recycled by size from run to run. What is given back is kept for the next step, up to a bound. One
/// thread at a time.
class SlotPool {
 public:
  struct Free {
    Allocator* allocator;
    void operator()(std::byte* memory) const { allocator->free(memory); }
  };
  using Bytes = std::unique_ptr<std::byte[], Free>;
  struct Slot {
    Bytes memory{nullptr, Free{nullptr}};
    std::size_t capacity = 0;
  };

  /// `allocator` outlives it and what was taken. At most `keep` bytes are kept for the next step.
  SlotPool(Allocator& allocator, std::size_t keep) : allocator_(allocator), keep_(keep) {}

  /// At least `bytes`, with whatever was in them.
  Slot take(std::size_t bytes);
  /// Nothing is given back where nothing was taken.
  void give_back(Slot& slot);

  std::size_t held() const { return held_; }  ///< bytes, in use and kept for reuse

 private:
  Allocator& allocator_;
  std::size_t keep_;
  std::unordered_map<std::size_t, std::vector<Bytes>> spare_;  // by capacity
  std::size_t spare_bytes_ = 0;
  std::size_t held_ = 0;
};

}  // namespace casync
