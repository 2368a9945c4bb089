#include "progress/pause.hpp"

#include <algorithm>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kIdle = 20 * kMillisecond;    // between looks at what nobody announces
constexpr Nanoseconds kSilence = 5 * kMillisecond;  // likewise, of what a peer on another host may have sent
constexpr Nanoseconds kRung = 50 * kMillisecond;    // where all peers ring: in case one of them cannot

Nanoseconds pause_for_news(const Lull& lull) {
  if (!lull.outstanding) return lull.rung ? 100 * kMillisecond : kIdle;
  if (lull.heard) return kRung;
  if (lull.moving) return lull.rung ? 50 * kMicrosecond : 100 * kMicrosecond;
  return std::clamp(lull.since_news / 20, 20 * kMicrosecond, lull.rung ? kRung : kSilence);
}

}  // namespace

Nanoseconds pause(const Lull& lull) {
  const Nanoseconds longest = pause_for_news(lull);
  return lull.due ? std::clamp(*lull.due, Nanoseconds{0}, longest) : longest;
}

}  // namespace casync
