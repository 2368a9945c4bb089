#include "progress/idle_sleep.hpp"

#include <algorithm>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kIdle = 20 * kMillisecond;    // between looks at what nobody announces
constexpr Nanoseconds kSilence = 5 * kMillisecond;  // likewise, of what a peer on another host may have sent
constexpr Nanoseconds kRung = 50 * kMillisecond;    // where all peers ring: in case one of them cannot

Nanoseconds sleep_for_news(const IdleState& idle) {
  if (!idle.outstanding) return idle.rung ? 100 * kMillisecond : kIdle;
  if (idle.heard) return kRung;
  if (idle.moving) return idle.rung ? 50 * kMicrosecond : 100 * kMicrosecond;
  return std::clamp(idle.since_news / 20, 20 * kMicrosecond, idle.rung ? kRung : kSilence);
}

}  // namespace

Nanoseconds idle_sleep(const IdleState& idle) {
  const Nanoseconds longest = sleep_for_news(idle);
  return idle.due ? std::clamp(*idle.due, Nanoseconds{0}, longest) : longest;
}

}  // namespace casync
