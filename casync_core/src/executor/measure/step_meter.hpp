#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "casync/types.hpp"

namespace casync {

/// Adds up, for each step, what was predicted for its gradients and how long at least one of them was under way, and
/// what the program then does until it has the next step's first gradient. Pure: times are passed in.
class StepMeter {
 public:
  struct Step {
    double predicted_s = 0;
    Nanoseconds busy = 0;
    Nanoseconds rest = 0;  ///< from the end of its last gradient to the next step
  };

  void begun(Nanoseconds now) {
    if (under_way_++ == 0) since_ = now;
  }
  void ended(double predicted_s, Nanoseconds now) {
    step_.predicted_s += predicted_s;
    failed(now);
  }
  void failed(Nanoseconds now) {
    if (--under_way_ == 0) step_.busy += now - since_;
    ended_ = now;
  }
  /// A step begins, with a gradient that was submitted at `now`. Returns the one before; nothing: some of it is under
  /// way, and counts in this one.
  std::optional<Step> next(Nanoseconds now) {
    if (under_way_ > 0) return std::nullopt;
    step_.rest = std::max<Nanoseconds>(now - ended_, 0);
    return std::exchange(step_, {});
  }

 private:
  std::uint32_t under_way_ = 0;
  Nanoseconds since_ = 0;
  Nanoseconds ended_ = 0;
  Step step_;
};

}  // namespace casync
