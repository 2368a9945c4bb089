#include "cuda/pinned.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "casync/error.hpp"

namespace casync::cuda {
namespace {

/// Whole pages, and eighths of a power of two, so that tensors of about one size share their blocks.
std::size_t rounded(std::size_t bytes) {
  const std::size_t step = std::max<std::size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

PinnedPool::~PinnedPool() {
  for (const auto& [size, blocks] : free_) {
    for (const Block& block : blocks) {
      if (block.after != nullptr) events_.give(block.after);
      device_.driver().cuMemFreeHost(block.memory);
    }
  }
}

/// With the mutex. Null if no copy has left a block of this size yet.
std::byte* PinnedPool::reuse(std::size_t size) {
  auto& blocks = free_[size];
  const auto is_free = [&](const Block& block) { return block.after == nullptr || events_.is_over(block.after); };
  const auto found = std::ranges::find_if(blocks, is_free);
  if (found == blocks.end()) return nullptr;
  const Block block = *found;
  blocks.erase(found);
  if (block.after != nullptr) events_.give(block.after);
  return block.memory;
}

/// With the mutex. Unlocks one block that nobody has; false if there is none.
bool PinnedPool::shrink() {
  for (auto at = free_.rbegin(); at != free_.rend(); ++at) {
    if (std::byte* const memory = reuse(at->first)) {
      device_.driver().cuMemFreeHost(memory);
      bytes_ -= at->first;
      return true;
    }
  }
  return false;
}

std::byte* PinnedPool::take(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  void* memory = reuse(size);
  if (memory == nullptr) {
    while (bytes_ + size > 2 * std::max(peak_, out_ + size) && shrink()) {
    }
    memory = lock_pages(size);
    bytes_ += size;
  }
  out_ += size;
  peak_ = std::max(peak_, out_);
  return static_cast<std::byte*>(memory);
}

/// With the mutex.
void* PinnedPool::lock_pages(std::size_t size) {
  void* memory = nullptr;
  Result result = device_.driver().cuMemHostAlloc(&memory, size, kPortable);
  while (result == kOutOfMemory && shrink()) result = device_.driver().cuMemHostAlloc(&memory, size, kPortable);
  if (result != kSuccess) {
    throw DeviceFailure(detail::concat(
        "no ", size, " bytes of pinned memory, beside ", bytes_, " that are there: CUDA's cuMemHostAlloc failed with ",
        device_.driver().text_of(result),
        ". Gradients on a device pass through as much pinned memory as they have bytes: raise the limit on locked "
        "memory (`ulimit -l`, or the container's), or free memory of the host"));
  }
  return memory;
}

void PinnedPool::give(std::byte* memory, std::size_t bytes, EventHandle after) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const std::size_t size = rounded(bytes);
  free_[size].push_back({memory, after});
  out_ -= size;
}

std::size_t PinnedPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace casync::cuda
