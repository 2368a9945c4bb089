#include "session/processors.hpp"

#include <unistd.h>

#include <string>
#include <thread>

#include "common/boot_id.hpp"
#include "common/hash.hpp"

namespace casync {

Processors processors_here(std::uint32_t host) {
  const std::string id = boot_id();
  const auto online = static_cast<std::uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  return processors_of(std::thread::hardware_concurrency(), online, id.empty() ? host + 1 : hash_text(id));
}

}  // namespace casync
