#pragma once

#include <cstddef>
#include <string>

#include "cuda/device.hpp"

namespace casync::cuda {

/// Code of one device, as NVRTC made it for that: its kernels, by name. Any thread, while the device is current.
class Module {
 public:
  /// Copies the code. Throws DeviceFailure if it is not this device's.
  Module(const Device& device, const std::string& code);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Throws DeviceFailure if there is none of that name.
  Function function(const char* name) const;

 private:
  const Driver& driver_;
  ModuleHandle module_ = nullptr;
};

/// How a kernel is launched: teams of blocks of threads.
struct Grid {
  int blocks = 1;  ///< of a team: the width of the grid
  int teams = 1;   ///< its height
  int threads = 1;
  bool cooperative = false;  ///< all blocks run at a time, and may wait for each other
};

/// The most blocks of `function` that the device runs at a time. Throws DeviceFailure.
int most_blocks(const Device& device, Function function, int threads);

/// `arguments`: the address of each. They are copied before it returns. Throws DeviceFailure.
void launch(const Driver& driver, Function function, const Grid& grid, void** arguments, Stream stream);

}  // namespace casync::cuda
