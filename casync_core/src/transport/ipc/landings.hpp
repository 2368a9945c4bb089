#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/device.hpp"

namespace casync::ipc {

/// Memory of a device of this process into which other processes write.
struct Landing {
  std::uint32_t number = 0;  ///< in this process, for as long as it lives
  std::size_t bytes = 0;
  cuda::DevicePointer memory = 0;
  cuda::IpcHandle handle{};
};

/// Landings of one device. CUDA leaves open what becomes of memory that is freed while another process has it open, so
/// none is ever freed: the next session of the process has it again. Any thread, while the device is current.
class Landings {
 public:
  static Landings& of(const cuda::Device& device);

  /// At least `bytes`, with whatever was in them. Throws DeviceFailure.
  const Landing& take(std::size_t bytes);
  void give(const Landing& landing);

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, Landing> all_;
  std::map<std::size_t, std::vector<std::uint32_t>> free_;  // by size
};

}  // namespace casync::ipc
