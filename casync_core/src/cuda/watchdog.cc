#include "cuda/watchdog.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"

namespace casync::cuda {
Judgement judge(Nanoseconds now, const Watch& watch) {
  if (watch.is_released) return {};
  if (watch.releases_since) {
    const Nanoseconds at = *watch.releases_since + watch.release_patience;
    return {now >= at ? Verdict::exit : Verdict::sleep, at};
  }
  if (watch.is_condemned) return {Verdict::release, now};
  if (!watch.waits_since) return {};
  const Nanoseconds at = *watch.waits_since + watch.patience;
  return {now >= at ? Verdict::look_again : Verdict::sleep, at};
}

Watchdog::Watchdog(std::string what, Nanoseconds patience, Calls calls)
    : what_(std::move(what)), calls_(std::move(calls)), watch_{.patience = patience}, thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  release("it is over");
  thread_.join();
  releaser_.join();
}

void Watchdog::wait_begins() {
  const std::lock_guard lock(mutex_);
  ++waits_;
  watch_.waits_since = steady_now();
  changed_.notify_all();
}

void Watchdog::wait_ends() {
  const std::lock_guard lock(mutex_);
  ++waits_;
  watch_.waits_since.reset();
}

void Watchdog::condemn(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (watch_.is_condemned) return;
  watch_.is_condemned = true;
  is_condemned_ = true;
  why_ = why;
  changed_.notify_all();
}

std::string Watchdog::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void Watchdog::release(const std::string& why) {
  condemn(why);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return watch_.is_released; });
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!watch_.is_released) {
    const Judgement judgement = judge(steady_now(), watch_);
    switch (judgement.verdict) {
      case Verdict::sleep:
        changed_.wait_for(lock, std::chrono::nanoseconds(std::min(judgement.at - steady_now(), kLongestTime / 2)));
        break;
      case Verdict::look_again: {
        const std::uint64_t before = waits_;
        lock.unlock();
        const bool waits = calls_.look_again();
        if (waits) {
          lock.lock();
          const bool is_same = waits_ == before;
          lock.unlock();
          if (is_same) {
            condemn(detail::concat("it did not go on for ", static_cast<double>(watch_.patience) / 1e9, " s"));
            calls_.ring();
          }
        }
        lock.lock();
        break;
      }
      case Verdict::release:
        watch_.releases_since = steady_now();
        releaser_ = std::thread([this] {
          calls_.release();
          const std::lock_guard released(mutex_);
          watch_.is_released = true;
          changed_.notify_all();
        });
        break;
      case Verdict::exit:
        std::fprintf(
            stderr,
            "casync: %s hangs, and does not end within %g s of being told to (%s). Only the end of this process "
            "frees the device, so it ends now.\n",
            what_.c_str(), static_cast<double>(watch_.release_patience) / 1e9, why_.c_str());
        _exit(1);
    }
  }
}

}  // namespace casync::cuda
