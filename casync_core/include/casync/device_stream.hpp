#pragma once

/// Where memory is that a program submits.
namespace casync {

/// A device, and the stream of it on which the program uses the memory at this point.
struct DeviceStream {
  int device = -1;         ///< its number, as CUDA counts in this process; negative: the memory is the host's
  void* stream = nullptr;  ///< a CUstream; null: the legacy default stream

  bool on_device() const { return device >= 0; }
};

}  // namespace casync
