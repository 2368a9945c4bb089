#pragma once

#include <cstddef>
#include <vector>

#include "cuda/device.hpp"

namespace casync::cuda {

/// Scratch memory of a device for what runs on one stream, one batch of launches after the other: each batch takes what
/// it needs from the front, and the next one takes the same memory, which on a stream is free by then. It grows to what
/// the largest batch took. One thread at a time, while the device is current.
class Arena {
 public:
  Arena(const Device& device, Stream stream) : device_(device), stream_(stream) {}
  ~Arena();  // while the device is current, and nothing is launched any more
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A batch begins: what was taken before is given out again.
  void rewind();
  /// Memory at a multiple of 256 bytes, full of whatever; null for none. Throws DeviceFailure if there is not so much.
  std::byte* take(std::size_t bytes);

  std::size_t bytes() const { return bytes_; }

 private:
  struct Block {
    DevicePointer memory;
    std::size_t bytes;
  };

  void free_all();

  const Device& device_;
  Stream stream_;
  std::vector<Block> blocks_;  // all but the last are full, until the next batch begins
  std::size_t used_ = 0;       // of the last one
  std::size_t taken_ = 0;      // by this batch
  std::size_t bytes_ = 0;      // of all blocks
};

}  // namespace casync::cuda
