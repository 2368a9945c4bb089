#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "casync/types.hpp"

/// Ends what hangs on a device, so that no rank waits for ever.
namespace casync::cuda {

/// What a watchdog knows: times of one clock, or nothing.
struct Watch {
  Nanoseconds patience = kLongestTime;           ///< with what is waited for
  std::optional<Nanoseconds> waits_since{};      ///< for the same thing
  bool is_condemned = false;                     ///< it has to end at once
  Nanoseconds release_patience = 5'000'000'000;  ///< with its end
  std::optional<Nanoseconds> releases_since{};   ///< it is being ended
  bool is_released = false;                      ///< it has ended
};

enum class Verdict : std::uint8_t {
  sleep,       ///< until `at`
  look_again,  ///< it is overdue: if it is still waited for, it is condemned
  release,     ///< end it, in another thread
  exit,        ///< its end hangs: only the process can end
};

struct Judgement {
  Verdict verdict = Verdict::sleep;
  Nanoseconds at = kLongestTime;
};

/// Pure.
Judgement judge(Nanoseconds now, const Watch& watch);

/// Watches over something that is waited for and may hang. If it is overdue, or condemned, it is released on a thread
/// of its own; if that hangs, the process ends, with the reason on stderr. Any thread.
class Watchdog {
 public:
  struct Calls {
    /// Whether what is overdue is still waited for, as far as this thread can find out.
    std::function<bool()> look_again;
    /// Ends it. On a thread of its own, and once.
    std::function<void()> release;
    /// It was condemned: whoever uses it is to hear of that.
    std::function<void()> ring;
  };

  /// `what` hangs, in an error.
  Watchdog(std::string what, Nanoseconds patience, Calls calls);
  /// Condemns it, if nobody has, and waits for its end.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// It is waited for from now on: for something else than until now.
  void wait_begins();
  void wait_ends();
  /// Nobody touches it any more, but `release`. The first reason stays.
  void condemn(const std::string& why);
  bool is_condemned() const { return is_condemned_; }
  std::string why() const;
  /// Condemns it, if nobody has, and waits until it is released.
  void release(const std::string& why);

 private:
  void run();

  const std::string what_;
  const Calls calls_;
  mutable std::mutex mutex_;  // of all below; held during none of the calls
  std::condition_variable changed_;
  Watch watch_;
  std::uint64_t waits_ = 0;  // how often a wait began or ended
  std::string why_;
  std::atomic<bool> is_condemned_{false};
  std::thread releaser_;
  std::thread thread_;
};

}  // namespace casync::cuda
