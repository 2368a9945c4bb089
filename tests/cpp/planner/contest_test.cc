#include "planner/plan_fixture.hpp"
#include "planner/tune/auto_tuner.hpp"

namespace casync {
namespace {

class ContestTest : public PlanTest {
 protected:
  AutoTuner make(const std::vector<OpenGradient>& gradients) {
    return AutoTuner({world_, costs, options, load, gradients, {}});
  }
  /// Which codecs `gradients` have, one after another, and how the comparison ends when a step takes `seconds` of them.
  static std::vector<std::string> run(AutoTuner& contest, const std::vector<OpenGradient>& gradients,
                                      const std::function<double(const std::string&)>& seconds) {
    std::vector<std::string> seen;
    for (std::uint32_t step = 1; !contest.over(); ++step) {
      std::string codecs;
      for (const auto& [name, signature, first] : gradients)
        codecs += (codecs.empty() ? "" : " ") + contest.plan(name, signature, step).plan.codec;
      if (std::ranges::find(seen, codecs) == seen.end()) seen.push_back(codecs);
      contest.ended(seconds(codecs));
    }
    return seen;
  }
  const World world_{separate_hosts(4)};
};

using List = std::vector<std::string>;

TEST_F(ContestTest, ComparesThePlanWithAllGradientsByOneCodec) {
  const std::vector<OpenGradient> gradients{{"large", gradient_of(1 << 22, "auto")},
                                            {"half", gradient_of(1 << 13, "auto")}};
  AutoTuner contest = make(gradients);
  const List seen =
      run(contest, gradients, [](const std::string& codecs) { return codecs == "fp16 fp16" ? 0.08 : 0.1; });
  EXPECT_NE(std::ranges::find(seen, "none none"), seen.end());
  EXPECT_NE(std::ranges::find(seen, "onebit onebit"), seen.end());
  for (const auto& [name, signature, step] : gradients) {
    const GradientPlan plan = contest.plan(name, signature, 30).plan;
    EXPECT_EQ(plan.codec, "fp16");
    EXPECT_NE(plan.reason.find("fp16 stays"), std::string::npos) << plan.reason;
  }
}

TEST_F(ContestTest, ACodecIsTriedOnlyWhereItIsACandidate) {
  const std::vector<OpenGradient> gradients{{"a", gradient_of(1 << 20, "auto(onebit)")},
                                            {"b", gradient_of(1 << 20, "auto(adacomp)")},
                                            {"c", gradient_of(1 << 20, "auto(onebit)", "ring")}};
  AutoTuner contest = make(gradients);
  for (const std::string& codecs : run(contest, gradients, [](const std::string&) { return 1.0; })) {
    EXPECT_EQ(codecs.find("fp16"), std::string::npos) << codecs;
    EXPECT_NE(codecs.substr(0, 7), "adacomp") << codecs;
  }
  EXPECT_EQ(contest.plan("a", gradients[0].signature, 30).plan.codec, "none") << "among equals";
}

TEST_F(ContestTest, APlanThatComesBackIsTheOneItWas) {
  const std::vector<OpenGradient> gradients{{"a", gradient_of(1 << 20, "auto")}, {"b", gradient_of(1 << 20, "auto")}};
  AutoTuner contest = make(gradients);
  std::map<std::string, GradientPlan> plans;  // of b, by codec
  while (!contest.over()) {
    const GradientPlan plan = contest.plan("b", gradients[1].signature, 5).plan;
    EXPECT_EQ(plans.emplace(plan.codec, plan).first->second, plan);
    contest.ended(1.0);
  }
}

TEST_F(ContestTest, AGradientIsPredictedAmongTheOthers) {
  const std::vector<OpenGradient> gradients{{"a", gradient_of(1 << 22, "auto(none)")},
                                            {"b", gradient_of(1 << 22, "auto(none)")}};
  AutoTuner contest = make(gradients);
  const double first = contest.plan("a", gradients[0].signature, 5).plan.predicted_s;
  const GradientPlan second = contest.plan("b", gradients[1].signature, 5).plan;
  EXPECT_GT(second.predicted_s, 1.5 * first) << "both are ready at once, and one waits";
  EXPECT_EQ(second.uncompressed_s, second.predicted_s);
}

TEST_F(ContestTest, ThePlanOfTheModelIsPredictedBesideNone) {
  const std::vector<OpenGradient> gradients{{"large", gradient_of(1 << 22, "auto")},
                                            {"half", gradient_of(1 << 13, "auto")}};
  AutoTuner contest = make(gradients);
  std::map<std::string, double> none;
  while (!contest.over()) {
    for (const auto& [name, signature, step] : gradients) {
      const GradientPlan plan = contest.plan(name, signature, 5).plan;
      EXPECT_GT(plan.predicted_s, 0);
      EXPECT_EQ(none.try_emplace(name, plan.uncompressed_s).first->second, plan.uncompressed_s) << "by any way";
    }
    contest.ended(1.0);
  }
}

TEST_F(ContestTest, WhereThereIsOneWayNothingIsCompared) {
  const std::vector<OpenGradient> gradients{{"a", gradient_of(1 << 20, "auto(none)")}};
  AutoTuner contest = make(gradients);
  EXPECT_TRUE(contest.over());
  EXPECT_FALSE(contest.compares());
  EXPECT_EQ(contest.plan("a", gradients[0].signature, 5).plan.reason.find("compared"), std::string::npos);
}

}  // namespace
}  // namespace casync
