#pragma once

#include <cstdint>
#include <functional>

#include "planner/search/model_plan.hpp"

namespace casync {

/// The longest interval that is found. Longer ones have destroyed trainings at usual learning rates (docs/covap.md), so
/// they are the program's to name.
inline constexpr std::uint32_t kMostFound = 4;

/// The interval of covap(...) where the program leaves it open, and what it follows from (COVAP: sections II-A, III-B).
struct FoundInterval {
  std::uint32_t steps = 1;     ///< at most kMostFound
  std::uint32_t wanted = 1;    ///< without that limit
  double communication_s = 0;  ///< of all gradients, if all were ready at once
  double waiting_s = 0;        ///< of that, of those that may wait
  double backward_s = 0;       ///< until the last one is ready
};

/// ceil(communication / computation), at least 1 and at most kMostInterval. A ratio that is above a whole number by
/// less than 0.05 counts as that number: the paper takes 4 for 842 ms / 210 ms. Where no computation hides anything the
/// interval is 1: there is no ratio.
std::uint32_t interval_for(double communication_s, double computation_s);

/// The interval with which what the gradients that may wait send in a step is hidden by the backward pass, beside what
/// all others send. `waits` says whose interval is open. All gradients of the request are settled.
FoundInterval find_interval(const ModelRequest& request, const std::function<bool(const SettledGradient&)>& waits);

}  // namespace casync
