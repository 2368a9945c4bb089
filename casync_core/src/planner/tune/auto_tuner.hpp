#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "casync/planner.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/model_plan.hpp"
#include "planner/tune/trial_schedule.hpp"

namespace casync {

/// The ways to synchronise a model that are compared, and the plans of each: what is best for the model as a whole
/// ("plan": model_plan.hpp), and all gradients by one codec, for each codec that is a candidate: planned as where the
/// program names it. A gradient of which that codec is no candidate keeps what is fastest for it alone. Ways that mean
/// the same are one.
class AutoTuner {
 public:
  /// Makes the plans, which takes a while. `rest_s`: of a step, between its last gradient and the next step's first.
  explicit AutoTuner(const ModelRequest& request, double rest_s = 0);

  /// The plan of an open gradient by the way that is current, also of one that was not there at first.
  Decision plan(const std::string& name, const Signature& signature, std::uint32_t step);
  /// A step ended that took `seconds`; nothing: it does not count. Returns whether plans have changed.
  bool ended(std::optional<double> seconds) { return referee_->ended(seconds); }
  bool over() const { return referee_->over(); }
  /// Whether there was more than one way.
  bool compares() const { return ways_.size() > 1; }
  std::string verdict() const { return referee_->verdict(); }
  /// "the step 108 ms, 190 ms with none": what is predicted for the current way.
  std::string prediction() const;

 private:
  using ByGradient = std::map<std::string, double, std::less<>>;
  struct Way {
    std::string codec;  ///< empty: what is best for the model as a whole
    OwnerLoad load;
    double gradients_s = 0;                                      ///< of all in a step, predicted
    ByGradient gradient_s{};                                     ///< predicted among the others of the step
    std::map<std::string, Alternative, std::less<>> of_model{};  ///< what is best for the model, by gradient
    std::map<std::string, Decision, std::less<>> decisions{};
  };
  const Decision& decide(Way& way, const std::string& name, const Signature& signature, std::uint32_t step);
  Decision decide_anew(const Way& way, const std::string& name, const Signature& signature, std::uint32_t step) const;

  World world_;
  CostTable costs_;
  PlannerOptions options_;
  // Predicted with all gradients uncompressed.
  double none_s_ = 0;   // of all
  double bound_s_ = 0;  // under which no plan is
  ByGradient uncompressed_s_;
  double rest_s_;
  std::vector<Way> ways_;  // in the order of preference
  std::optional<TrialSchedule> referee_;
};

}  // namespace casync
