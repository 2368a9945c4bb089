#pragma once

#include <optional>

#include "casync/types.hpp"

/// How long who makes progress sleeps when there is nothing to do (DESIGN: progress has three states). Pure.
namespace casync {

/// What is known after a turn that brought nothing.
struct Lull {
  bool outstanding = false;  ///< operations are
  bool moving = false;       ///< bytes are, from or to this rank
  bool rung = false;         ///< every peer wakes this rank when it has sent something
  Nanoseconds since_news = 0;
  std::optional<Nanoseconds> due{};  ///< in how long the Engine decides something though nothing happens
};

/// The longest sleep until the next turn. While something is outstanding it grows with the silence, a twentieth of it:
/// who has waited long does not mind.
Nanoseconds pause(const Lull& lull);

/// Until when the background thread sleeps because others make progress: `waiters` threads that wait for an operation,
/// or one that has said it comes back before `rest`. Nothing if nobody does.
std::optional<Nanoseconds> parked_until(Nanoseconds now, int waiters, Nanoseconds rest);

}  // namespace casync
