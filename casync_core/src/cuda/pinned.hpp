#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/device.hpp"

namespace casync::cuda {

/// Memory of the host that copies to and from a device run beside the program in: pages that the system does not move.
/// What was given back is kept and given out again, because locking pages takes longer than the copies: at most as much
/// again as was out at one time. Any thread, while the device is current.
class PinnedPool {
 public:
  PinnedPool(const Device& device, Events& events) : device_(device), events_(events) {}
  ~PinnedPool();  // while the device is current; all was given back, and copies are over
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Null for none. Throws DeviceFailure if the system does not lock so much memory.
  std::byte* take(std::size_t bytes);
  /// `after`: the last copy that touches it, or null; the pool has the event from now on.
  void give(std::byte* memory, std::size_t bytes, EventHandle after);

  /// How much it has locked.
  std::size_t bytes() const;

 private:
  struct Block {
    std::byte* memory;
    EventHandle after;
  };

  std::byte* reuse(std::size_t size);
  bool shrink();
  void* lock_pages(std::size_t size);

  const Device& device_;
  Events& events_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<Block>> free_;  // by size
  std::size_t bytes_ = 0;                           // that are locked
  std::size_t out_ = 0;                             // of them given out
  std::size_t peak_ = 0;                            // the most that were
};

}  // namespace casync::cuda
