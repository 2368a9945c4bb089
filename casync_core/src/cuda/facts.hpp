#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace casync::cuda {

/// What the driver says of the devices of this machine that this process may use, and of the ways between them.
struct Facts {
  struct Device {
    std::string name;
    std::string uuid;  ///< "GPU-" and 32 digits in groups, as nvidia-smi shows it: of the device, whatever its number
    std::size_t bytes = 0;
    std::string pci;  ///< domain:bus:device.function
    int major = 0;    ///< the compute capability
    int minor = 0;
  };
  struct Link {
    int from = 0;
    int to = 0;
    bool reaches = false;      ///< whether one reads and writes the other's memory
    int performance_rank = 0;  ///< the driver's order of such ways; 0 is the fastest
  };

  int version = 0;  ///< of CUDA that the driver serves: 1000 for each major version, 10 for each minor one
  std::vector<Device> devices;
  std::vector<Link> links;
};

/// Throws DeviceFailure if there is no driver to ask, or if it sees no device.
Facts facts();
/// Of one device, which may be the same as another process's. Throws DeviceFailure.
std::string uuid_of(int ordinal);

}  // namespace casync::cuda
