#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "casync/types.hpp"

namespace casync {

/// Tells how long after the beginning of a step its gradients are submitted. A step begins when a tensor is submitted
/// to be reduced that was submitted in the step before; session/steps.hpp counts them by the same rule. Pure: times are
/// passed in.
class StepClock {
 public:
  /// Whether a step begins with a tensor that is submitted for the `time_of_name`-th time.
  bool begins(std::uint64_t time_of_name) const { return time_of_name > step_; }
  /// A tensor was submitted for the `time_of_name`-th time. Returns how long after the step's beginning that was;
  /// nothing: it is late, and of an earlier step.
  std::optional<Nanoseconds> submitted(std::uint64_t time_of_name, Nanoseconds now) {
    if (begins(time_of_name)) {
      step_ = time_of_name;
      began_ = now;
    }
    if (time_of_name < step_) return std::nullopt;
    return std::max<Nanoseconds>(now - began_, 0);
  }

 private:
  std::uint64_t step_ = 0;
  Nanoseconds began_ = 0;
};

}  // namespace casync
