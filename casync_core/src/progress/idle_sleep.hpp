#pragma once

#include <optional>

#include "casync/types.hpp"

/// How long who makes progress sleeps when there is nothing to do. Pure.
namespace casync {

/// What is known after a turn that brought nothing.
struct IdleState {
  bool outstanding = false;  ///< operations are
  bool moving = false;       ///< bytes are, from or to this rank
  bool rung = false;         ///< every peer wakes this rank when it has sent something
  bool heard = false;        ///< and the kernel does so, at whatever comes
  Nanoseconds since_news = 0;
  std::optional<Nanoseconds> due{};  ///< in how long the Engine decides something though nothing happens
};

/// The longest sleep until the next turn: what is silent [2] and what the Engine does at its own time [3]; the numbers
/// are the wake-up conditions of docs/concurrency.md. While something is outstanding it grows with the silence, a
/// twentieth of it: who has waited long does not mind. Where peers are
/// heard there is nothing to look for.
Nanoseconds idle_sleep(const IdleState& idle);

}  // namespace casync
