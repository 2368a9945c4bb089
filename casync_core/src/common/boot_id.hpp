#pragma once

#include <fstream>
#include <string>

namespace casync {

/// The number that this machine drew when it started, the same in all its containers; empty: there is none.
inline std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace casync
