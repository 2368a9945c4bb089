#pragma once

#include <chrono>

#include "casync/types.hpp"

namespace casync {

/// Of the system's steady clock: only differences mean anything. For executors; rooms that decide are told the time.
inline Nanoseconds steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace casync
