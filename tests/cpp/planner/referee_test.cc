#include <gtest/gtest.h>

#include <random>

#include "planner/tune/trial_schedule.hpp"

namespace casync {
namespace {

/// Runs until the referee has decided, with steps that take `seconds` of each way and up to `noise` more. Returns how
/// many steps that were, and how long they took.
std::pair<int, double> run(TrialSchedule& referee, const std::vector<double>& seconds, double noise = 0,
                           unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> more(1, 1 + noise);
  int steps = 0;
  double time = 0;
  while (!referee.over() && steps < 1000) {
    const double step = seconds[referee.current()] * more(random);
    ++steps;
    time += step;
    referee.ended(step);
  }
  return {steps, time};
}

TEST(TrialSchedule, TheFastestStays) {
  for (std::size_t fastest = 0; fastest < 4; ++fastest) {
    for (std::size_t first = 0; first < 4; ++first) {
      std::vector<double> seconds(4, 0.1);
      seconds[fastest] = 0.08;
      for (unsigned seed = 0; seed < 50; ++seed) {
        TrialSchedule referee({"none", "fp16", "onebit", "plan"}, first);
        EXPECT_EQ(referee.current(), first);
        const auto [steps, time] = run(referee, seconds, 0.1, seed);
        EXPECT_EQ(referee.current(), fastest) << referee.verdict();
        EXPECT_LE(steps, 30);
      }
    }
  }
}

TEST(TrialSchedule, OneStepInTenThatTakesTenTimesAsLongDecidesNothing) {
  int wrong = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    TrialSchedule referee({"none", "plan"}, 1);
    const std::vector<double> seconds{0.12, 0.1};
    while (!referee.over()) referee.ended(seconds[referee.current()] * (random() % 10 == 0 ? 10 : 1));
    wrong += referee.current() == 1 ? 0 : 1;
  }
  EXPECT_LE(wrong, 20);
}

TEST(TrialSchedule, AmongEqualsTheOneThatIsPreferredStays) {
  TrialSchedule referee({"none", "fp16", "plan"}, 2);
  run(referee, {0.101, 0.1005, 0.1});
  EXPECT_EQ(referee.current(), 0U);
  EXPECT_EQ(referee.verdict(), "none 101 ms a step, fp16 100 ms, plan 100 ms: none stays");
}

/// 2 % of the first 3,000, where the plan of the cost model takes at most twice as long as the fastest.
TEST(TrialSchedule, ComparingCostsAtMostSixtyStepsOfTheFastest) {
  for (const double slow : {1.5, 3.0, 10.0, 20.0}) {
    const double half = std::max(1.0, slow / 2);  // 16 bits
    for (const double plan : {1.0, 1.5, 2.0}) {
      for (const auto& seconds : {std::vector{slow, half, 1.0, plan}, std::vector{1.0, half, slow, plan}}) {
        TrialSchedule referee({"none", "fp16", "onebit", "plan"}, 3);
        const auto [steps, time] = run(referee, seconds);
        EXPECT_EQ(seconds[referee.current()], 1) << referee.verdict();
        EXPECT_LE(time - steps, 60) << slow << ", the plan " << plan;
      }
    }
  }
}

TEST(TrialSchedule, AStepInWhichPlansChangeDecidesNothing) {
  TrialSchedule referee({"none", "plan"}, 1);
  bool settling = true;
  while (!referee.over()) settling = referee.ended(settling ? 9.0 : referee.current() == 0 ? 0.1 : 0.2);
  EXPECT_EQ(referee.current(), 0U) << referee.verdict();
}

TEST(TrialSchedule, StepsThatDoNotCountAreNotCompared) {
  TrialSchedule referee({"none", "plan"}, 1);
  int given = 0;
  while (!referee.over()) {
    const bool counts = ++given % 2 == 0;
    const double seconds = referee.current() == 0 ? 0.2 : 0.1;
    referee.ended(counts ? std::optional(seconds) : std::nullopt);
  }
  EXPECT_EQ(referee.current(), 1U);
  EXPECT_LE(given, 30);
}

TEST(TrialSchedule, WithoutTimesTheFirstStays) {
  TrialSchedule referee({"none", "fp16", "plan"}, 2);
  for (int step = 0; step < 29; ++step) EXPECT_FALSE(referee.ended(std::nullopt));
  EXPECT_TRUE(referee.ended(std::nullopt));
  EXPECT_TRUE(referee.over());
  EXPECT_EQ(referee.current(), 2U);
  EXPECT_EQ(referee.verdict(), "none not timed, fp16 not timed, plan not timed: plan stays");
  EXPECT_FALSE(referee.ended(0.1));
}

TEST(TrialSchedule, OneWayNeedsNoSteps) {
  TrialSchedule referee({"none"}, 0);
  EXPECT_TRUE(referee.over());
}

}  // namespace
}  // namespace casync
