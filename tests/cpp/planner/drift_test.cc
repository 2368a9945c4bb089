// When measured times have left predicted ones, and what follows from it.
#include "planner/tune/drift.hpp"

#include "planner/plan_fixture.hpp"
#include "planner/tune/measured_planning.hpp"

namespace casync {
namespace {

/// Steps until a drift is found, at most `most`; 0: none is.
template <typename TimeOf>
std::uint32_t found_after(std::uint32_t most, const TimeOf& time_of) {
  Drift drift;
  for (std::uint32_t step = 1; step <= most; ++step) {
    if (drift.add(0.010, time_of(step))) return step;
  }
  return 0;
}

constexpr std::uint32_t kFirst = Drift::kFirst;

TEST(Drift, StepsThatAlwaysTakeLongerThanPredictedAreNone) {
  EXPECT_EQ(found_after(200, [](std::uint32_t) { return 0.070; }), 0U);
}

TEST(Drift, IsFoundWhenStepsTakeMoreThanTwiceTheTimeForTwentySteps) {
  const auto slower = [](double factor) {
    return [factor](std::uint32_t step) { return step <= kFirst ? 0.070 : 0.070 * factor; };
  };
  EXPECT_EQ(found_after(200, slower(2.1)), kFirst + Drift::kSteps);
  EXPECT_EQ(found_after(200, slower(1.9)), 0U);
  EXPECT_EQ(found_after(200, slower(1 / 2.1)), kFirst + Drift::kSteps) << "or when they are faster";
  EXPECT_EQ(found_after(200, slower(1 / 1.9)), 0U);
}

TEST(Drift, NineteenSlowStepsAreNone) {
  EXPECT_EQ(found_after(200, [](std::uint32_t step) { return step > kFirst && step % 20 != 0 ? 0.1 : 0.01; }), 0U);
}

TEST(Drift, IsToldOnceAndLooksAnewAfterNewPlans) {
  Drift drift;
  std::uint32_t told = 0;
  const auto add = [&](double measured_s, int steps) {
    for (int i = 0; i < steps; ++i) told += drift.add(0.010, measured_s) ? 1 : 0;
  };
  add(0.01, 10);
  add(0.05, 100);
  EXPECT_EQ(told, 1U);
  EXPECT_TRUE(drift.found());
  drift.start_anew();
  EXPECT_FALSE(drift.found());
  add(0.05, 100);
  EXPECT_EQ(told, 1U) << "the new plans are as fast as at first";
  add(0.20, 100);
  EXPECT_EQ(told, 2U);
}

TEST(Drift, StepsWithoutAPredictionSayNothing) {
  Drift drift;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(drift.add(0, 1));
}

class DriftPlanning : public ::testing::Test {
 protected:
  MeasuredPlanning make(bool re_plan) {
    MeasuredPlanning::Options options;
    options.host_of = separate_hosts(2);
    options.re_plan = re_plan;
    options.explain = true;
    return MeasuredPlanning(options, [this](const LogRecord& record) {
      if (record.fields.contains("event") && record.fields.at("event") == LogRecord::Value("drift"))
        drifts.push_back(record.text);
    });
  }
  static std::vector<std::byte> costs(double link) {
    MeasuredCosts costs;
    costs.inter.seconds_per_byte = link;
    costs.codecs["onebit"] = {0, 1e-9, 0, 1e-9};
    std::vector<std::byte> bytes;
    put(bytes, costs);
    return bytes;
  }
  static void tell(MeasuredPlanning& root, double link) {
    for (const std::uint32_t rank : {0U, 1U}) root.costs_of(rank, costs(link));
    if (const auto work = root.work()) {
      work->run();
      EXPECT_TRUE(root.worked(*work));
    }
  }
  /// Once the root has planned something.
  static void drift(MeasuredPlanning& root) {
    for (std::uint32_t step = 0; step < kFirst + Drift::kSteps; ++step)
      root.stepped({0.01, step < kFirst ? 0.01 : 0.1, 0});
  }

  std::vector<std::string> drifts;
};

TEST_F(DriftPlanning, ALineSaysSoAndPlansStayUnlessItIsAskedFor) {
  MeasuredPlanning root = make(false);
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  tell(root, 0.1e-9);
  const GradientPlan plan = root.plan("a", open, 0);
  drift(root);
  ASSERT_EQ(drifts.size(), 1U);
  EXPECT_NE(drifts[0].find("100 ms"), std::string::npos) << drifts[0];
  EXPECT_NE(drifts[0].find("CASYNC_REPLAN=1"), std::string::npos) << drifts[0];
  tell(root, 50e-9);
  EXPECT_FALSE(root.re_plan("a", open, plan, 40).has_value());
}

TEST_F(DriftPlanning, WhenItIsAskedForNewCostsGiveNewPlansAfterADrift) {
  MeasuredPlanning root = make(true);
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  tell(root, 0.1e-9);
  const GradientPlan plan = root.plan("a", open, 0);
  EXPECT_EQ(plan.codec, "none");
  tell(root, 50e-9);
  EXPECT_FALSE(root.re_plan("a", open, plan, 40).has_value()) << "there was no drift";
  drift(root);
  EXPECT_FALSE(root.re_plan("a", open, plan, 40).has_value()) << "not all ranks have told what things cost since";
  tell(root, 50e-9);
  const auto next = root.re_plan("a", open, plan, 80);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->codec, "onebit");
  EXPECT_EQ(next->epoch, plan.epoch + 1);
  EXPECT_FALSE(root.re_plan("a", open, *next, 81).has_value());
}

TEST_F(DriftPlanning, WhenItIsAskedForNamedCodecsAreMeasuredAndPlannedToo) {
  MeasuredPlanning root = make(true);
  const Signature named = gradient_of(1 << 22, "onebit");
  EXPECT_TRUE(root.define("n", named).empty()) << "nothing competes with it";
  EXPECT_TRUE(root.measuring());
  EXPECT_FALSE(root.costs(named, 3).has_value());
  EXPECT_TRUE(root.costs(named, 4).has_value());
  EXPECT_TRUE(root.measuring());
  EXPECT_FALSE(root.costs(named, 5).has_value());
  EXPECT_TRUE(root.costs(named, 4 + MeasuredPlanning::kTellsEvery).has_value());
  const GradientPlan first = root.plan("n", named, 0);
  tell(root, 50e-9);
  const auto next = root.re_plan("n", named, first, 4);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->codec, "onebit");
  EXPECT_EQ(next->epoch, 1U);
  EXPECT_GT(next->predicted_s, first.predicted_s) << "the link is slow";
}

}  // namespace
}  // namespace casync
