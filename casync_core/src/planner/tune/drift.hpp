#pragma once

#include <cstdint>
#include <optional>

#include "casync/planner.hpp"
#include "planner/cost/recent.hpp"

namespace casync {

/// Finds out when steps no longer take what was predicted for them.
///
/// The prediction of a step is the sum of its gradients', each alone; the step itself takes less, because gradients
/// overlap, or more, because the program computes on the same cores. So the first kFirst steps of a plan say how the
/// two compare. When the ratio is more than kFactor times as large as then, or as small, in kSteps steps in a row,
/// there is a drift. It is told once.
class Drift {
 public:
  static constexpr std::size_t kFirst = 8;
  static constexpr double kFactor = 2;
  static constexpr std::uint32_t kSteps = 20;

  struct Found {
    double predicted_s = 0;  ///< of the last step, by what the first ones took
    double measured_s = 0;
  };

  /// A step in which nothing was predicted is passed over.
  std::optional<Found> add(double predicted_s, double measured_s);
  bool found() const { return found_; }
  /// There are new plans.
  void start_anew() { *this = {}; }

 private:
  Recent<double, kFirst> first_;
  std::uint32_t in_a_row_ = 0;
  bool found_ = false;
};

}  // namespace casync
