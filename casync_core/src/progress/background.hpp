#pragma once

#include <optional>

#include "progress/submit_policy.hpp"

/// When the background thread makes progress, and when it leaves that to others. Pure. The numbers are the wake-up
/// conditions of docs/concurrency.md.
namespace casync {

/// Until when it leaves progress to the thread that has just submitted; 0: it does not. [5]
Nanoseconds rests_after_submit(const SubmitPolicy::Advice& advice, Nanoseconds now);

/// By when it must be awake after a submit: at the end of its rest [5]; after `sleep_time`, which is how long the
/// submitter would sleep, if that one has taken a turn and leaves the rest to it [2, 3]; else when nobody has had a
/// turn lately [4].
Nanoseconds awake_after_submit(const SubmitPolicy::Advice& advice, Nanoseconds now, Nanoseconds sleep_time);

/// Until when it leaves progress to the thread that has just waited: most often that one waits for the next operation
/// at once. [7]
Nanoseconds rests_after_wait(Nanoseconds now);

/// Until when it sleeps because others make progress: `waiters` threads that wait for an operation [6], or one that has
/// said it comes back before `rest` [5, 7]. Nothing if nobody does.
std::optional<Nanoseconds> parked_until(Nanoseconds now, int waiters, Nanoseconds rest);

}  // namespace casync
