// When gradients become ready: the least of each rank, and of the ranks the last one.
#include <gtest/gtest.h>

#include "planner/cost/measurements.hpp"
#include "planner/cost/ready_times.hpp"

namespace casync {
namespace {

TEST(ReadyTimes, IsTheLeastOfTheLastSteps) {
  ReadyTimes readiness;
  const auto add = [&](double ready_s) { readiness.add({"w", 4e6, ready_s, ready_s / 2}); };
  for (const double ready_s : {0.001, 0.001, 0.001, 0.001}) add(ready_s);  // will be forgotten
  for (const double ready_s : {0.020, 0.021, 0.019, 3.0, 0.020, 0.022, 0.020, 0.018}) add(ready_s);
  readiness.add({"first", 1e6, 0, 0});
  std::map<std::string, MeasuredGradient, std::less<>> gradients;
  readiness.tell(gradients);
  EXPECT_EQ(gradients.at("w").bytes, 4e6);
  EXPECT_EQ(gradients.at("w").ready_s, 0.018);
  EXPECT_EQ(gradients.at("w").worked_s, 0.009);
  EXPECT_EQ(gradients.at("first").ready_s, 0.0);
}

TEST(ReadyTimes, AGradientStartsWhenTheLastRankIsReady) {
  std::vector<MeasuredCosts> ranks(3);
  ranks[0].gradients["w"].ready_s = 0.010;
  ranks[1].gradients["w"].ready_s = 0.030;
  ranks[2].gradients["other"].bytes = 1;
  const CostTable table = measured_over(reduce(ranks), CostTable());
  EXPECT_EQ(table.gradients.at("w").ready_s, 0.030);
  EXPECT_FALSE(table.gradients.at("other").ready_s.has_value());
}

TEST(ReadyTimes, TheLastGradientSaysForHowMuchOfThePassItsThreadWorks) {
  MeasuredCosts costs;
  const auto work = [&] { return measured_over(costs, CostTable()).backward_work; };
  EXPECT_EQ(work(), 1) << "nothing is known";
  costs.gradients["first"] = {4e6, {}, 0.0, 0.0};
  EXPECT_EQ(work(), 1);
  costs.gradients["last"] = {4e6, {}, 0.040, 0.010};
  costs.gradients["w"] = {4e6, {}, 0.020, 0.020};
  EXPECT_EQ(work(), 0.25);
}

TEST(ReadyTimes, Travels) {
  MeasuredCosts costs;
  costs.gradients["w"] = {4e6, {}, 0.5, 0.25};
  costs.gradients["v"] = {4e6, {}, {}};
  std::vector<std::byte> bytes;
  put(bytes, costs);
  EXPECT_EQ(get_measured_costs(bytes), costs);
}

}  // namespace
}  // namespace casync
