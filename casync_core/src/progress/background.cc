#include "progress/background.hpp"

namespace casync {

Nanoseconds rests_after_submit(const SubmitPolicy::Advice& advice, Nanoseconds now) {
  return advice.rest > 0 ? now + advice.rest : 0;
}

Nanoseconds awake_after_submit(const SubmitPolicy::Advice& advice, Nanoseconds now, Nanoseconds sleep_time) {
  if (advice.rest > 0) return now + advice.rest;
  return now + (advice.turn ? sleep_time : SubmitPolicy::kStale);
}

Nanoseconds rests_after_wait(Nanoseconds now) { return now + SubmitPolicy::kRest; }

std::optional<Nanoseconds> parked_until(Nanoseconds now, int waiters, Nanoseconds rest) {
  constexpr Nanoseconds kParked = 20'000'000;  // between looks at whether they still do
  if (rest > now) return rest;
  if (waiters > 0) return now + kParked;
  return std::nullopt;
}

}  // namespace casync
