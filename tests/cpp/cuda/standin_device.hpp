#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "casync/types.hpp"
#include "cuda/device.hpp"
#include "cuda/nccl.hpp"
#include "standin/standin.hpp"

/// What tests need that have a device of the stand-in.
namespace casync::cuda::test {

inline constexpr Nanoseconds kSecond = 1'000'000'000;

inline void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

inline const Driver& standin() {
  setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1);
  return driver();
}
inline const Nccl& standin_nccl() {
  setenv("CASYNC_NCCL", STANDIN_NCCL, 1);
  return nccl();
}

/// Memory of a device, with a pattern that begins with `first`. The host looks at it only when nothing moves there.
class Buffer {
 public:
  Buffer(const Device& device, std::size_t bytes, unsigned first) : device_(device), bytes_(bytes) {
    if (bytes > 0) CASYNC_CUDA(device.driver(), cuMemAlloc_v2, &address_, bytes);
    for (std::size_t i = 0; i < bytes; ++i) host()[i] = at(first, i);
  }
  ~Buffer() {
    if (bytes_ > 0) device_.driver().cuMemFree_v2(address_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* memory() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t bytes() const { return bytes_; }
  bool equals(unsigned first) const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (host()[i] != at(first, i)) return false;
    }
    return true;
  }

 private:
  static unsigned char at(unsigned first, std::size_t i) {
    return static_cast<unsigned char>(first + first / 256 * 3 + i * 7 + i / 256);
  }
  unsigned char* host() const { return reinterpret_cast<unsigned char*>(memory() + standin_distance()); }

  const Device& device_;
  DevicePointer address_ = 0;
  std::size_t bytes_;
};

}  // namespace casync::cuda::test
