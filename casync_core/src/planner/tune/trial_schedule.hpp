#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace casync {

/// Compares ways to synchronise a whole model by the time that steps take with each, because no cost model knows all
/// that a machine does. Ways take turns of a few steps, on all ranks alike; who is far behind drops out; the fastest
/// stays. Pure: times are passed in.
///
///   TrialSchedule referee({"none", "fp16", "plan"}, 2);   // in order of preference; the plan goes first
///   while (!referee.over()) {
///     run a step the way ways[referee.current()];
///     referee.ended(seconds);
///   }
///
/// It takes at most kMostSteps steps. A way of which the first step that counts takes kFar times as long as one of
/// another is given up at once: the more bytes a codec saves, the longer is a step without it.
class TrialSchedule {
 public:
  static constexpr std::uint32_t kSettling = 1;  ///< steps after a change that do not count: plans are told in them
  static constexpr std::uint32_t kCounted = 2;   ///< that follow, and count
  static constexpr std::uint32_t kTurns = 3;
  static constexpr std::uint32_t kMostSteps = 30;
  static constexpr double kClose = 1.02;  ///< so much slower is as fast: the way that is preferred stays
  static constexpr double kBehind = 1.3;  ///< who is so much slower after a turn has no further one
  static constexpr double kFar = 3;

  /// `ways` in the order of preference among equals; the comparison begins with `first`, which stays if it is cut off.
  TrialSchedule(std::vector<std::string> ways, std::size_t first);

  std::size_t current() const { return current_; }
  bool over() const { return over_; }
  /// A step has ended that took `seconds`; nothing: it does not count. Returns whether `current` or `over` has changed.
  bool ended(std::optional<double> seconds);
  /// "none 120 ms a step, fp16 101 ms, plan 103 ms: fp16 stays".
  std::string verdict() const;

 private:
  struct Way {
    std::string name;
    std::vector<double> seconds{};
    bool out = false;
  };
  bool next();
  void decide();
  double least() const;  ///< the fastest step of any way

  std::vector<Way> ways_;
  std::size_t first_;
  std::size_t current_;
  std::vector<std::size_t> waiting_;  // in this turn, the next one last
  std::uint32_t turns_ = 0;
  std::uint32_t steps_ = 0;
  std::uint32_t in_window_ = 0;
  std::uint32_t counted_ = 0;  // in this window
  bool over_ = false;
};

}  // namespace casync
