#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// When a run that has begun was last seen to move, here or on another rank, and what follows if it stands still. Pure.
///
/// What of it moves here, each rank sees by itself. A rank that waits for the others tells from their word that it
/// moves there: with a slow link elsewhere nothing of it may come here for long.
class Standstill {
 public:
  struct Options {
    Nanoseconds warning = 0;
    Nanoseconds timeout = 0;
  };
  explicit Standstill(const Options& options) : options_(options) {}

  void begin(std::uint32_t run, Nanoseconds now) {
    if (run >= runs_.size()) runs_.resize(run + 1);
    runs_[run] = {.heard = now, .told = now};
  }
  /// Another rank says that it moves there.
  void heard(std::uint32_t run, Nanoseconds now) { runs_[run].heard = now; }

  enum class Verdict : std::uint8_t { moves, watched, report, give_up };
  /// Of a run of which something moved here at `moved`.
  Verdict check(std::uint32_t run, Nanoseconds moved, Nanoseconds now) {
    Run& of = runs_[run];
    const Nanoseconds stood = stands_for(run, moved, now);
    if (stood >= options_.timeout) return Verdict::give_up;
    if (stood < options_.warning) of.has_warned = false;
    if (stood >= options_.warning && !of.has_warned) {
      of.has_warned = true;
      return Verdict::report;
    }
    return stood >= interval() ? Verdict::watched : Verdict::moves;
  }
  Nanoseconds stands_for(std::uint32_t run, Nanoseconds moved, Nanoseconds now) const {
    return now - std::max(moved, runs_[run].heard);
  }
  /// Who has not looked for longer was stopped, or had no core: it does not know what moved.
  Nanoseconds longest_gap() const { return std::max<Nanoseconds>(interval(), 1'000'000'000); }
  /// Whether the others are to be told now that it has moved here.
  bool is_to_tell(std::uint32_t run, Nanoseconds moved, Nanoseconds now) {
    Run& of = runs_[run];
    if (moved <= of.told || now - of.told < interval()) return false;
    of.told = now;
    return true;
  }

 private:
  struct Run {
    Nanoseconds heard = 0;
    Nanoseconds told = 0;
    bool has_warned = false;
  };
  /// Several times before anybody would report it.
  Nanoseconds interval() const { return std::min(options_.warning, options_.timeout) / 4; }

  Options options_;
  std::vector<Run> runs_;
};

}  // namespace casync
