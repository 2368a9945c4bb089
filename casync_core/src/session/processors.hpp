#pragma once

#include <cstdint>

#include "planner/cost/measurements.hpp"

namespace casync {

/// The processors of a rank that may use `usable` of the `online` ones of a machine. One that may not use all is bound,
/// and shares those that it may use with nobody.
constexpr Processors processors_of(std::uint32_t usable, std::uint32_t online, std::uint64_t machine) {
  return {.machine = usable < online ? 0 : machine, .usable = usable > 0 ? usable : 1};
}

/// Those of this rank, which is on `host`. Containers of a machine are hosts of their own and share its processors.
/// Where the machine has no number, its host is the machine.
Processors processors_here(std::uint32_t host);

}  // namespace casync
