// The interval of covap(...) where the program leaves it open.
#include "planner/search/interval.hpp"

#include "planner/plan_fixture.hpp"
#include "planner/search/request.hpp"

namespace casync {
namespace {

TEST(Interval, IsThatOfTheCovapPaper) {  // table I: ResNet-101, VGG-19, Bert
  EXPECT_EQ(interval_for(0.280, 0.135), 3U);
  EXPECT_EQ(interval_for(0.842, 0.210), 4U) << "a ratio of 4.0095";
  EXPECT_EQ(interval_for(0.520, 0.170), 4U);
}

TEST(Interval, FollowsTheRatioWithSomeSlack) {
  const std::vector<std::pair<double, std::uint32_t>> expected{{0.5, 1}, {1.0, 1}, {1.04, 1}, {1.06, 2}, {2.5, 3}};
  for (const auto& [ratio, steps] : expected) EXPECT_EQ(interval_for(ratio, 1), steps) << ratio;
  EXPECT_EQ(interval_for(100, 1), kMostInterval);
  EXPECT_EQ(interval_for(1, 0), 1U) << "nothing hides anything";
  EXPECT_EQ(interval_for(0, 1), 1U);
}

/// Gradients that one link carries in as long as backward takes, times `ratio`.
FoundInterval found(double ratio, std::size_t waiting, std::size_t others) {
  const World world(separate_hosts(4));
  CostTable costs;
  costs.inter = {1e-6, 1e-9, 1e-6};
  constexpr std::int64_t kNumel = 1 << 20;
  std::vector<SettledGradient> settled;
  for (std::size_t g = 0; g < waiting + others; ++g) {
    const std::string name = "g" + std::to_string(g);
    SettledGradient& one = settled.emplace_back();
    one.name = name;
    one.signature = gradient_of(kNumel, g < waiting ? "covap(none)" : "none");
    one.plan.topology = "ring";
    one.plan.partitions = 4;
    // A ring of four sends 3/2 of a gradient.
    const double all_s = 1.5 * 4 * kNumel * 1e-9 * static_cast<double>(waiting + others);
    costs.gradients[name] = {
        4.0 * kNumel, {}, all_s / ratio * static_cast<double>(g + 1) / static_cast<double>(waiting + others)};
  }
  const PlannerOptions options;
  const OwnerLoad load;
  const std::vector<OpenGradient> open;
  return find_interval({world, costs, options, load, open, settled}, [](const SettledGradient& gradient) {
    return parse_compression(gradient.signature.compression).interval == 0;
  });
}

TEST(Interval, IsFoundFromTheModelsCommunication) {
  EXPECT_EQ(found(0.5, 16, 0).steps, 1U);
  EXPECT_EQ(found(2.5, 16, 0).steps, 3U);
  EXPECT_EQ(found(3.7, 16, 0).steps, 4U);
  EXPECT_NEAR(found(2.5, 16, 0).communication_s / found(2.5, 16, 0).backward_s, 2.5, 0.1);
}

TEST(Interval, MindsWhatCannotWait) {
  const FoundInterval half = found(1.6, 8, 8);  // the others take 0.8 of the backward pass, and leave 0.2 for 0.8
  EXPECT_EQ(half.steps, 4U) << half.waiting_s << " of " << half.communication_s;
  EXPECT_EQ(found(4, 8, 8).steps, kMostFound) << "the others alone are too much";
  EXPECT_EQ(found(4, 8, 8).wanted, kMostInterval);
}

TEST(Interval, IsLeftOpenWhereNoneIsNamed) {
  EXPECT_EQ(parse_compression("covap").interval, 0U);
  EXPECT_EQ(parse_compression("covap(interval=3)").interval, 3U);
  EXPECT_EQ(parse_compression("covap(interval=3)").choice, "none");
  EXPECT_EQ(parse_compression("covap(terngrad(bits=4))").choice, "terngrad(bits=4)");
  EXPECT_EQ(parse_compression("covap").choice, "none");
  EXPECT_EQ(parse_compression("always(covap(fp16))").interval, 0U);
  EXPECT_EQ(parse_compression("covap(fp16, interval=4)").interval, 4U);
  EXPECT_EQ(interval_of("covap(fp16)"), kMostInterval);
}

}  // namespace
}  // namespace casync
