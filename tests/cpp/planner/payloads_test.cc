// Codecs whose payloads vary in size are priced by what they really make of a gradient.
#include "planner/cost/payload_sizes.hpp"
#include "planner/plan_fixture.hpp"
#include "planner/tune/measured_planning.hpp"

namespace casync {
namespace {

constexpr double kBytes = 4 << 20;
constexpr const char* kTopk = "test_topk(ratio=0.9)";  // at most 1.8 times as many bytes as the gradient has

EncodedSize size_of(double payload, bool of_trial = false, std::string_view tensor = "conv1.weight") {
  return {tensor, kTopk, kBytes, kBytes, payload, of_trial};
}

double share_of(const PayloadSizes& payloads) {
  std::map<std::string, MeasuredGradient, std::less<>> gradients;
  payloads.tell(gradients);
  return gradients.at("conv1.weight").payload_share.at(kTopk);
}

TEST(PayloadSizes, TheMeanOfTheLastOnesCounts) {
  PayloadSizes payloads;
  EXPECT_FALSE(payloads.has("conv1.weight", kTopk));
  payloads.add(size_of(kBytes));  // will be forgotten
  for (std::size_t i = 0; i < PayloadSizes::kRecent / 2; ++i) {
    payloads.add(size_of(kBytes * 0.01));
    payloads.add(size_of(kBytes * 0.03));
  }
  EXPECT_TRUE(payloads.has("conv1.weight", kTopk));
  EXPECT_NEAR(share_of(payloads), 0.02, 1e-12);
}

TEST(PayloadSizes, WhatWasSentCountsMoreThanATrial) {
  PayloadSizes payloads;
  payloads.add(size_of(kBytes * 0.5, true));
  EXPECT_DOUBLE_EQ(share_of(payloads), 0.5);
  payloads.add(size_of(kBytes * 0.1));
  EXPECT_DOUBLE_EQ(share_of(payloads), 0.1);
  payloads.add(size_of(kBytes * 0.5, true));
  EXPECT_DOUBLE_EQ(share_of(payloads), 0.1);
}

TEST(PayloadSizes, ARankWithoutAnyElementSaysNothing) {
  PayloadSizes payloads;
  payloads.add({"conv1.weight", kTopk, kBytes, 0, 0, false});
  EXPECT_FALSE(payloads.has("conv1.weight", kTopk));
}

TEST_F(PlanTest, APayloadThatIsFarShorterThanItsLimitPays) {
  const Signature signature = gradient_of(1 << 20, detail::concat("auto(", kTopk, ")"));
  EXPECT_EQ(plan(signature).plan.codec, "none") << "it may be longer than the gradient";
  costs.gradients["conv1.weight"].payload_share[kTopk] = 0.01;
  const Decision decision = plan(signature);
  EXPECT_EQ(decision.plan.codec, kTopk);
  EXPECT_NEAR(static_cast<double>(decision.plan.payload_bytes), kBytes * 0.01, 1);
  costs.gradients["conv1.weight"].payload_share[kTopk] = 7;
  EXPECT_EQ(plan(signature).plan.codec, "none") << "no payload is longer than its limit";
}

TEST_F(PlanTest, OfACodecOfFixedSizeNothingHasToBeMeasured) {
  costs.gradients["conv1.weight"].payload_share["onebit"] = 0.0001;
  const double limit = largest_payload(gradient_of(1 << 20), *make_codec("onebit"));
  EXPECT_EQ(expected_payload(costs, "conv1.weight", gradient_of(1 << 20), *make_codec("onebit")), limit);
}

TEST_F(PlanTest, WhatIsUsualStandsUntilAPayloadWasMeasured) {
  const Signature signature = gradient_of(1 << 20);
  const auto codec = make_codec("lossless");
  EXPECT_GT(largest_payload(signature, *codec), kBytes) << "a value may take 36 bits";
  EXPECT_NEAR(expected_payload(costs, "conv1.weight", signature, *codec), kBytes * 12 / 32, kBytes / 100);
  costs.gradients["conv1.weight"].payload_share["lossless"] = 0.5;
  EXPECT_EQ(expected_payload(costs, "conv1.weight", signature, *codec), kBytes / 2);
}

TEST(MeasuredPayloads, OfTheRanksTheMeanCounts) {
  std::vector<MeasuredCosts> ranks(3);
  ranks[0].gradients["w"] = {kBytes, {{kTopk, 0.02}}};
  ranks[1].gradients["w"] = {kBytes, {{kTopk, 0.04}}};
  const CostTable table = measured_over(reduce(ranks), CostTable());
  EXPECT_DOUBLE_EQ(table.gradients.at("w").payload_share.at(kTopk), 0.03);
}

TEST(MeasuredPayloads, TravelAndOfManyTheLargestGradientsDo) {
  MeasuredCosts costs;
  for (int i = 0; i < 2000; ++i) costs.gradients[detail::concat("layer.", i, ".weight")] = {1.0 + i, {{kTopk, 0.5}}};
  std::vector<std::byte> bytes;
  put(bytes, costs);
  EXPECT_LT(bytes.size(), kMostBytesOfGradients + 100);
  const MeasuredCosts told = get_measured_costs(bytes);
  EXPECT_EQ(told.gradients.at("layer.1999.weight"), costs.gradients.at("layer.1999.weight"));
  EXPECT_GT(told.gradients.size(), 100U);
  EXPECT_FALSE(told.gradients.contains("layer.0.weight"));
}

TEST(MeasuredPayloads, AreTriedOnceOnEachGradientBeforeTheCostsAreTold) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  MeasuredPlanning planning(options, [](const LogRecord&) {});
  const Signature open = gradient_of(1 << 20, detail::concat("auto(", kTopk, ", fp16)"));
  for (const std::string& codec : planning.define("w", open)) {
    planning.measured({CostKind::encode, codec, 1e6, 1e-5});
    planning.measured({CostKind::decode, codec, 1e6, 1e-5});
  }
  EXPECT_TRUE(planning.to_try("named", gradient_of(1 << 20, kTopk), 2).empty());
  EXPECT_TRUE(planning.to_try("w", open, 1).empty());
  EXPECT_EQ(planning.to_try("w", open, 2), (std::vector<std::string>{kTopk, "fp16"}));
  EXPECT_FALSE(planning.costs(open, 4).has_value()) << "the trial is not over";
  planning.encoded({"w", kTopk, kBytes, 1e5, 1e3, true});
  planning.ready({"w", kBytes, 0.0125, 0.0125});
  const auto told = planning.costs(open, 4);
  ASSERT_TRUE(told.has_value());
  EXPECT_DOUBLE_EQ(get_measured_costs(*told).gradients.at("w").payload_share.at(kTopk), 0.01);
  for (const std::uint32_t rank : {0U, 1U}) planning.costs_of(rank, *told);
  const auto work = planning.work();
  ASSERT_NE(work, nullptr);
  work->run();
  ASSERT_TRUE(planning.worked(*work));
  const GradientPlan plan = planning.plan("w", open, 0);
  EXPECT_EQ(plan.payload_bytes, static_cast<std::uint64_t>(kBytes * 0.01));
  EXPECT_NE(plan.reason.find("ready 12.5 ms after"), std::string::npos) << plan.reason;
}

TEST(MeasuredPayloads, ACodecThatNeverAppliesToAGradientIsNotTriedOnIt) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  MeasuredPlanning planning(options, [](const LogRecord&) {});
  Signature vector = gradient_of(30522, "auto(powersgd(rank=4), onebit)");
  vector.shape = {30522, 1};
  EXPECT_EQ(planning.define("bias", vector), (std::vector<std::string>{"onebit"}));
  EXPECT_EQ(planning.to_try("bias", vector, MeasuredPlanning::kTriedRun), (std::vector<std::string>{"onebit"}));
  Signature matrix = vector;
  matrix.shape = {768, 768};
  EXPECT_EQ(planning.to_try("weight", matrix, MeasuredPlanning::kTriedRun).size(), 2U);
}

TEST(MeasuredPayloads, ACodecOfFixedSizeIsTriedOnAFewGradientsForItsTimeAlone) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  MeasuredPlanning planning(options, [](const LogRecord&) {});
  std::size_t tried = 0;
  for (int i = 0; i < 20; ++i) {
    tried +=
        planning.to_try(detail::concat("w", i), gradient_of(1 << 20, "auto(fp16)"), MeasuredPlanning::kTriedRun).size();
  }
  EXPECT_EQ(tried, MeasuredPlanning::kTriedGradients);
}

}  // namespace
}  // namespace casync
