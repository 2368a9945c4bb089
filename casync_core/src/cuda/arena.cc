#include "cuda/arena.hpp"

#include <algorithm>
#include <utility>

namespace casync::cuda {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::size_t kLeast = std::size_t{1} << 20;  // so that many small requests make few blocks

}  // namespace

Arena::~Arena() { free_all(); }

void Arena::free_all() {
  for (const Block& block : blocks_) device_.driver().cuMemFree_v2(block.memory);
  blocks_.clear();
  bytes_ = used_ = 0;
}

/// If the last batch did not fit into one block, one takes the place of all: when the stream has come so far, since
/// what is freed must not be in use.
void Arena::rewind() {
  used_ = 0;
  const std::size_t wanted = std::exchange(taken_, 0);
  if (blocks_.size() < 2) return;
  CASYNC_CUDA(device_.driver(), cuStreamSynchronize, stream_);
  free_all();
  take(wanted);
  used_ = taken_ = 0;
}

std::byte* Arena::take(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::size_t size = (bytes + kAlign - 1) / kAlign * kAlign;
  if (blocks_.empty() || used_ + size > blocks_.back().bytes) {
    Block block{0, std::max(size, kLeast)};
    CASYNC_CUDA(device_.driver(), cuMemAlloc_v2, &block.memory, block.bytes);
    blocks_.push_back(block);
    bytes_ += block.bytes;
    used_ = 0;
  }
  auto* const memory = reinterpret_cast<std::byte*>(blocks_.back().memory + used_);
  used_ += size;
  taken_ += size;
  return memory;
}

}  // namespace casync::cuda
