#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "casync/log.hpp"
#include "casync/planner.hpp"
#include "plan/planning.hpp"
#include "planner/cost/measurements.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/assign_offsets.hpp"
#include "planner/search/interval.hpp"
#include "planner/search/model_plan.hpp"
#include "planner/tune/auto_tuner.hpp"
#include "planner/tune/drift.hpp"

namespace casync {

/// Plans by the cost model: from priors at first (epoch 0), each gradient alone, and from measured costs after the
/// warm-up (epoch 1), the whole model at once, which is computed elsewhere (PlanWork). Then it compares that plan with
/// all gradients by one codec (AutoTuner), and what takes least time stays. In its first run a gradient that is planned
/// again goes uncompressed, so that links are measured. In large worlds the costs of a gradient's routes are counted
/// elsewhere too, before its first plan. Only gradients whose compression is "auto(...)" are planned again. With
/// `re_plan` all are, and once more whenever steps no longer take what was predicted and all ranks have told what
/// things cost by then. A tensor with a plan in `fixed` has that one as far as it holds and its codec applies, unless
/// its user named another codec or interval; a user who names another topology is refused.
class MeasuredPlanning final : public Planning {
 public:
  static constexpr std::uint32_t kMeasuredEpoch = 1;
  /// The run of a gradient before which codecs are tried on it: the first one is seldom like the others.
  static constexpr std::uint64_t kTriedRun = 2;
  /// On how many gradients a codec is tried whose payloads are as long as is known.
  static constexpr std::size_t kTriedGradients = 4;
  /// With `re_plan` a rank tells its costs again after so many runs of a gradient.
  static constexpr std::uint64_t kTellsEvery = 50;
  /// In worlds of more members routes are counted elsewhere: with 64 it takes 10 ms for each route and kind of codec.
  static constexpr std::uint32_t kCountsAtOnce = 64;

  struct Options {
    std::vector<std::uint32_t> host_of;
    PlannerOptions planner;
    std::map<std::string, GradientPlan, std::less<>> fixed;
    Processors processors{};    ///< of this rank
    std::uint32_t warm_up = 3;  ///< runs of a gradient on plans from priors
    bool explain = false;       ///< log each decision with its predicted times
    bool re_plan = false;       ///< plan anew when steps no longer take what was predicted
    bool deterministic =
        false;  ///< a plan depends on its gradient alone: not on what is measured, nor on other gradients
  };

  /// `log` hears of every plan, and of the costs, if `explain` is set.
  MeasuredPlanning(Options options, Log log);

  std::vector<std::string> define(const std::string& name, const Signature& signature) override;
  void forget(const std::string& name, const Signature& signature) override;
  bool measuring() const override {
    const bool once = !timed_.empty() || interval_is_open_;
    return options_.host_of.size() > 1 && (options_.re_plan || (once && tells_at_ == 0));
  }
  void measured(const Measurement& measurement) override { measurements_.add(measurement); }
  void encoded(const EncodedSize& size) override { measurements_.add(size); }
  void ready(const ReadyGradient& gradient) override { measurements_.add(gradient); }
  std::vector<std::string> to_try(const std::string& name, const Signature& signature, std::uint64_t submits) override;
  void stepped(const Stepped& step) override;
  std::optional<std::vector<std::byte>> costs(const Signature& signature, std::uint64_t submits) override;

  GradientPlan plan(const std::string& name, const Signature& signature, std::uint32_t sequence) override;
  void costs_of(std::uint32_t member, std::span<const std::byte> costs) override;
  std::unique_ptr<PlanWork> work() override;
  std::unique_ptr<PlanWork> work_for(const std::string& name, const Signature& signature, std::uint32_t step) override;
  bool worked(PlanWork& work) override;
  bool step_began(Nanoseconds now, bool counts) override;
  void closing() override;
  std::optional<GradientPlan> re_plan(const std::string& name, const Signature& signature, const GradientPlan& current,
                                      std::uint32_t sequence) override;

  /// Further fixed plans, in place of those of the same names. A tensor whose codec was left open and that has another
  /// plan by now has this one from its next run on that waits for a start.
  void fix(const std::map<std::string, GradientPlan, std::less<>>& plans);

  /// Throws InvalidArgument, as plan_gradient does, for a tensor that no plan or not its fixed plan can carry.
  static void check(const Options& options, const std::string& name, const Signature& signature);
  /// Whether `codec` competes for a gradient on a device, so that its costs there are wanted.
  static bool weighs(const Options& options, const std::string& name, const Signature& signature,
                     std::string_view codec);

 private:
  class ModelWork;
  class CountWork;
  bool measures_links_with(const std::string& name, const Signature& signature) const;
  GradientPlan uncompressed(const std::string& name, const Signature& signature, std::uint32_t sequence);
  GradientPlan first_plan(const std::string& name, const Signature& signature, std::uint32_t sequence);
  void adopt(ModelWork& work);
  void tell(const std::string& name, const Signature& signature, const Decision& decision) const;
  bool is_planned_again(const Signature& signature) const;
  bool is_open(const std::string& name, const Signature& signature) const;
  const GradientPlan* fixed_for(const std::string& name, const Signature& signature) const;
  void note_measured(GradientPlan& plan, const std::string& name, const Signature& signature) const;
  Decision decide(const std::string& name, const Signature& signature, std::uint32_t sequence);

  Options options_;
  World world_;
  Log log_;
  // Every rank.
  std::set<std::string> timed_;                             // codecs
  std::set<std::pair<std::string, std::string>> on_trial_;  // gradients and codecs whose payloads are wanted
  std::map<std::string, std::size_t, std::less<>> tried_;   // codecs of fixed size: on how many gradients
  Measurements measurements_;
  std::uint64_t tells_at_ = 0;  // the run after which costs are told again; 0: they were not told yet
  // Root.
  bool is_root_ = false;  // it is asked for plans
  CostTable costs_;
  MeasuredCosts measured_;  // what of them was
  std::uint32_t epoch_ = 0;
  std::uint32_t interval_ = 1;     // where covap(...) leaves it open
  bool interval_is_open_ = false;  // of some gradient
  bool warned_ = false;            // of a long interval
  Drift drift_;
  Recent<double, 8> rests_;  // Stepped::rest_s
  OwnerLoad load_;
  OwnerLoad lasting_;  // the part of load_ that a re-plan leaves as it is
  OffsetDealer offsets_;
  std::map<std::uint32_t, MeasuredCosts> told_by_;
  std::vector<OpenGradient> open_;
  std::vector<SettledGradient> settled_;
  std::unique_ptr<PlanWork> work_;  // to be handed out
  bool planning_ = false;           // it was, and has not come back
  std::set<std::string> counted_;   // gradients for which routes were
  std::optional<AutoTuner> contest_;
  std::optional<Nanoseconds> began_;  // the step under way, since there is a contest
};

}  // namespace casync
