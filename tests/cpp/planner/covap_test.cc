// covap: which gradients go in one step of several, by which plans. What is dealt to which step: offsets_test.cc.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan_fixture.hpp"
#include "planner/tune/measured_planning.hpp"

namespace casync {
namespace {

constexpr std::int64_t kLarge = 16 << 20;  // elements

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

MeasuredPlanning make(std::uint32_t members, std::map<std::string, GradientPlan, std::less<>> fixed = {}) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(members);
  options.fixed = std::move(fixed);
  return MeasuredPlanning(options, [](const LogRecord&) {});
}

TEST_F(PlanTest, CovapIsTheCodecInOneStepOfSeveral) {
  for (const char* codec : {"none", "fp16", "onebit", "terngrad(bits=4)"}) {
    GradientPlan plain = plan(gradient_of(kLarge, codec)).plan;
    GradientPlan covap = plan(gradient_of(kLarge, detail::concat("covap(", codec, ", interval=4)"))).plan;
    EXPECT_EQ(covap.period, 4U);
    EXPECT_TRUE(says(covap.reason, "in one step of 4")) << covap.reason;
    covap.period = 1;
    covap.reason = plain.reason;
    EXPECT_EQ(covap, plain) << codec;
    EXPECT_EQ(plan(gradient_of(kLarge, detail::concat("covap(", codec, ", interval=1)"))).plan, plain);
  }
}

TEST_F(PlanTest, SmallGradientsGoInEveryStepUnlessAlways) {
  for (const char* codec : {"none", "onebit"}) {
    const std::string covap = detail::concat("covap(", codec, ", interval=4)");
    const GradientPlan small = plan(gradient_of(4095, covap)).plan;
    EXPECT_EQ(small.period, 1U);
    EXPECT_EQ(small.codec, "none");
    EXPECT_TRUE(says(small.reason, "under 4096 elements")) << small.reason;
    EXPECT_EQ(plan(gradient_of(4096, covap)).plan.period, 4U);
    EXPECT_EQ(plan(gradient_of(100, detail::concat("always(", covap, ")"))).plan.period, 4U);
  }
  host_of = separate_hosts(1);
  EXPECT_EQ(plan(gradient_of(kLarge, "covap(fp16, interval=4)")).plan.period, 1U) << "nothing is sent";
}

TEST_F(PlanTest, WaitingBeginsWithTheCodecAndIsForWhatItDoesNotApplyToToo) {
  Signature matrix = gradient_of(1 << 20, "covap(test_lowrank(start=1000), interval=4)");
  matrix.shape = {1024, 1024};
  EXPECT_EQ(plan(matrix, 0).plan.period, 1U);
  EXPECT_EQ(plan(matrix, 0).plan.until, 1000U);
  EXPECT_EQ(plan(matrix, 1000).plan.period, 4U);
  const GradientPlan vector = plan(gradient_of(1 << 20, "covap(test_lowrank(start=1000), interval=4)")).plan;
  EXPECT_EQ(vector.codec, "none");
  EXPECT_EQ(vector.period, 4U);
}

TEST_F(PlanTest, WhatCannotWaitIsRefusedByName) {
  for (const char* codec : {"none", "fp16"}) {
    Signature signature = gradient_of(kLarge, detail::concat("covap(", codec, ", interval=4)"));
    signature.dtype = DType::int32;
    std::string text = refusal(signature);
    for (const char* part : {"conv1.weight", "one step of 4", "Average of int32 has no residual", "without covap"})
      EXPECT_TRUE(says(text, part)) << text;
    signature.dtype = DType::float32;
    signature.op = ReduceOp::max;
    EXPECT_TRUE(says(refusal(signature), "Max of float32 has no residual")) << refusal(signature);
    signature.op = ReduceOp::average;
    signature.kind = OpKind::reducescatter;
    EXPECT_TRUE(says(refusal(signature), "a reducescatter would keep")) << refusal(signature);
    signature.compression = detail::concat("covap(", codec, ", interval=1)");
    EXPECT_EQ(refusal(signature), "");
  }
}

TEST(CovapPlanning, WhatGoesInOneStepOfSeveralIsDealtByItsBytes) {
  MeasuredPlanning planning = make(2);
  const auto planned = [&](const std::string& name, std::int64_t numel, const char* compression) {
    return planning.plan(name, gradient_of(numel, compression), 0);
  };
  const GradientPlan large = planned("large", 1 << 16, "covap(none, interval=4)");
  EXPECT_EQ(large.period, 4U);
  EXPECT_EQ(large.offset, 0U);
  std::uint32_t next = 1;
  for (const char* name : {"a", "b", "c"}) {
    const GradientPlan plan = planned(name, 1 << 14, "covap(none, interval=4)");
    EXPECT_LT(plan.partitions, 4U);
    EXPECT_EQ(plan.offset, next++) << name;
  }
  EXPECT_EQ(planned("d", 1 << 14, "covap(fp16, interval=4)").offset, 1U) << "half as many bytes";
  EXPECT_EQ(planned("e", 1 << 14, "covap(none, interval=4)").offset, 2U);
  EXPECT_EQ(planned("f", 1 << 14, "covap(none, interval=4)").offset, 3U);
  EXPECT_EQ(planned("g", 1 << 14, "covap(none, interval=4)").offset, 1U);
  EXPECT_EQ(planned("c", 1 << 14, "covap(none, interval=4)").offset, 3U) << "as before";
  const GradientPlan divided = planned("h", 1 << 20, "covap(none, interval=4)");
  EXPECT_GE(divided.partitions, 4U) << "a quarter of it goes in each step";
}

/// VGG-19, of which one gradient has 72 % of the bytes: COVAP, table V.
TEST(CovapPlanning, EachStepHasItsPartOfALargeModelAndEachRankOfThat) {
  const std::vector<std::int64_t> channels{3,   64,  64,  128, 128, 256, 256, 256, 256,
                                           512, 512, 512, 512, 512, 512, 512, 512};
  std::vector<std::int64_t> numels{4096 * 1000, 4096 * 4096, 512 * 49 * 4096};
  for (std::size_t i = channels.size() - 1; i > 0; --i) numels.push_back(9 * channels[i] * channels[i - 1]);
  for (const std::uint32_t members : {2U, 4U, 8U}) {
    for (std::uint32_t interval = 2; interval <= 8; ++interval) {
      MeasuredPlanning planning = make(members);
      std::vector<double> bytes(interval);
      std::vector<std::vector<double>> owned(interval, std::vector<double>(members));
      for (std::size_t i = 0; i < numels.size(); ++i) {
        const GradientPlan plan = planning.plan(
            std::to_string(i), gradient_of(numels[i], detail::concat("covap(fp16, interval=", interval, ")"), "ps"), 0);
        const double partition = static_cast<double>(plan.payload_bytes) / plan.partitions;
        for (std::uint32_t p = 0; p < plan.partitions && plan.period == interval; ++p) {
          const std::uint32_t turn = plan.partitions < interval ? 0 : p * interval / plan.partitions;
          const std::uint32_t step = (plan.offset + turn) % interval;
          bytes[step] += partition;
          owned[step][(plan.first_owner + p) % members] += partition;
        }
      }
      const double mean = std::accumulate(bytes.begin(), bytes.end(), 0.0) / interval;
      EXPECT_LE(*std::ranges::max_element(bytes), 1.01 * mean) << interval;
      for (const auto& of_step : owned)
        EXPECT_LE(*std::ranges::max_element(of_step), 1.03 * mean / members + kPartitionBytes) << interval;
    }
  }
}

/// The owners of gradients that go in every step depend on nothing else.
TEST(CovapPlanning, WhatWaitsChangesNoOwnerOfWhatDoesNot) {
  const auto owners = [](bool some_wait) {
    MeasuredPlanning planning = make(4);
    std::vector<std::uint32_t> found;
    for (int i = 0; i < 12; ++i) {
      if (some_wait) planning.plan("w" + std::to_string(i), gradient_of(9'000, "covap(none, interval=4)", "ps"), 0);
      found.push_back(planning.plan("a" + std::to_string(i), gradient_of(5'000, "none", "ps"), 0).first_owner);
    }
    return found;
  };
  EXPECT_EQ(owners(true), owners(false));
}

TEST(CovapPlanning, PlansFromMeasuredCostsKeepTheOffsets) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  options.re_plan = true;
  MeasuredPlanning planning(options, [](const LogRecord&) {});
  const std::vector<std::int64_t> numels{10'000, 20'000, 30'000};  // the first would now go with the second
  const auto gradient = [&](std::size_t i) { return gradient_of(numels[i], "covap(none, interval=2)"); };
  std::vector<GradientPlan> plans;
  for (std::size_t i = 0; i < numels.size(); ++i) plans.push_back(planning.plan(std::to_string(i), gradient(i), 0));
  MeasuredCosts costs;
  costs.inter.seconds_per_byte = 1e-9;
  std::vector<std::byte> bytes;
  put(bytes, costs);
  for (const std::uint32_t rank : {0U, 1U}) planning.costs_of(rank, bytes);
  const auto work = planning.work();
  ASSERT_NE(work, nullptr);
  work->run();
  ASSERT_TRUE(planning.worked(*work));
  for (std::size_t i = 0; i < numels.size(); ++i) {
    const auto again = planning.re_plan(std::to_string(i), gradient(i), plans[i], 5);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->epoch, 1U);
    EXPECT_EQ(again->period, 2U);
    EXPECT_EQ(again->offset, plans[i].offset) << i;
  }
}

TEST(CovapPlanning, AFixedPlanOfOneStepOfSeveralHoldsForThatInterval) {
  GradientPlan saved;
  saved.codec = "fp16";
  saved.topology = "ps";
  saved.period = 4;
  saved.offset = 3;
  MeasuredPlanning planning = make(2, {{"a", saved}});
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "covap(fp16, interval=4)"), 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "auto"), 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "covap(fp16, interval=3)"), 0).period, 3U);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "covap(bf16, interval=4)"), 0).codec, "bf16");
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "fp16"), 0).period, 1U) << "every step is asked for";
}

}  // namespace
}  // namespace casync
