#include "progress/submit_policy.hpp"

namespace casync {

SubmitPolicy::Advice SubmitPolicy::submitted(Nanoseconds now, bool only_small, bool awaited) {
  if (alone_) return {.turn = false, .rest = awaited ? kRest : 0};
  if (!held_since_) held_since_ = now;
  if (only_small && awaited) return {.turn = now - *held_since_ >= kHold, .rest = kRest};
  return {.turn = now - last_turn_ >= kStale, .rest = 0};
}

void SubmitPolicy::taken(Nanoseconds now) {
  last_turn_ = now;
  held_since_.reset();
}

}  // namespace casync
