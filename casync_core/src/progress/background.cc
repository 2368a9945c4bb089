#include "progress/background.hpp"

namespace casync {

Nanoseconds rests_after_submit(const Intake::Advice& advice, Nanoseconds now) {
  return advice.rest > 0 ? now + advice.rest : 0;
}

Nanoseconds awake_after_submit(const Intake::Advice& advice, Nanoseconds now, Nanoseconds nap) {
  if (advice.rest > 0) return now + advice.rest;
  return now + (advice.turn ? nap : Intake::kStale);
}

Nanoseconds rests_after_wait(Nanoseconds now) { return now + Intake::kRest; }

std::optional<Nanoseconds> parked_until(Nanoseconds now, int waiters, Nanoseconds rest) {
  constexpr Nanoseconds kParked = 20'000'000;  // between looks at whether they still do
  if (rest > now) return rest;
  if (waiters > 0) return now + kParked;
  return std::nullopt;
}

}  // namespace casync
