#pragma once

#include <map>
#include <string>
#include <string_view>

#include "casync/planner.hpp"
#include "plan/planning.hpp"
#include "planner/cost/recent.hpp"

namespace casync {

/// When gradients become ready on one rank, in seconds from the beginning of the step, which is the submit of its first
/// gradient. Of each it is the least of the last kRecent steps: whatever disturbs a backward pass makes it longer, as
/// the first steps are, in which memory is new and codecs are tried.
class ReadyTimes {
 public:
  static constexpr std::size_t kRecent = 8;

  void add(const ReadyGradient& gradient);
  void forget(const std::string& tensor) { gradients_.erase(tensor); }
  /// Writes `ready_s`, `worked_s` and `bytes` of each gradient.
  void tell(std::map<std::string, MeasuredGradient, std::less<>>& gradients) const;

 private:
  struct Gradient {
    double bytes = 0;
    Recent<double, kRecent> ready_s, worked_s;
  };
  std::map<std::string, Gradient, std::less<>> gradients_;
};

}  // namespace casync
