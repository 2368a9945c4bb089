#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/planning.hpp"

namespace casync {

/// Times a codec on scratch data, for the planner: every candidate under the same conditions, run or not. About 10 ms
/// on one core and 12 MB while it lasts. The data are float32; a codec with feedback is timed with a residual or state
/// of its own, one of several rounds in all of them.
class Trial {
 public:
  explicit Trial(std::string_view codec) : codec_(codec) {}

  void run();
  const std::vector<Measurement>& results() const { return results_; }  ///< their texts live as long as the trial

 private:
  std::string codec_;
  std::vector<Measurement> results_;
};

/// The gradient that codecs are timed on: the same numbers, evenly within [-1, 1), for each of them.
void fill_for_trial(std::span<float> values);

}  // namespace casync
