#include "planner/tune/drift.hpp"

namespace casync {

std::optional<Drift::Found> Drift::add(double predicted_s, double measured_s) {
  if (predicted_s <= 0 || measured_s <= 0 || found_) return std::nullopt;
  if (first_.values().size() < kFirst) {
    first_.add(measured_s / predicted_s);
    return std::nullopt;
  }
  const double expected_s = predicted_s * median(first_.values());
  const bool left = measured_s > expected_s * kFactor || measured_s * kFactor < expected_s;
  in_a_row_ = left ? in_a_row_ + 1 : 0;
  if (in_a_row_ < kSteps) return std::nullopt;
  found_ = true;
  return Found{expected_s, measured_s};
}

}  // namespace casync
