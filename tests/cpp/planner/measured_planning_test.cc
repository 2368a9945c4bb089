// From samples to costs, from the costs of the ranks to those of the job, and from those to new plans, once.
#include "planner/tune/measured_planning.hpp"

#include <map>
#include <set>

#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

TEST(Measurements, CostsOfAJobAreTheSlowestLinksAndTheMedianCodecs) {
  CostTable prior;
  std::vector<MeasuredCosts> ranks(3);
  for (std::size_t m = 0; m < 3; ++m) {
    ranks[m].inter.seconds_per_byte = 1e-9 * static_cast<double>(m + 1);
    ranks[m].codecs["onebit"].encode_s_per_byte = m == 1 ? 90e-9 : 1e-9;
  }
  const CostTable table = measured_over(reduce(ranks), prior);
  EXPECT_DOUBLE_EQ(table.inter.seconds_per_byte, 3e-9);
  EXPECT_EQ(table.inter.latency_s, prior.inter.latency_s);
  EXPECT_EQ(table.intra.seconds_per_byte, prior.intra.seconds_per_byte);
  EXPECT_EQ(table.of("onebit").encode_s_per_byte, 1e-9);
  EXPECT_EQ(table.of("fp16").encode_s_per_byte, prior.of("fp16").encode_s_per_byte);
}

TEST(Measurements, ACodecOnADeviceIsAnotherThanOnTheHost) {
  Measurements measurements;
  for (const double bytes : {1e6, 2e6}) {
    measurements.add({CostKind::device_encode, "onebit", bytes, 9e-6 + bytes * 0.02e-9});
    measurements.add({CostKind::device_decode, "onebit", bytes, 7e-6 + bytes * 0.01e-9});
    measurements.add({CostKind::copy, {}, bytes, bytes * 0.1e-9});
  }
  EXPECT_FALSE(measurements.has("onebit")) << "on the host";
  const MeasuredCosts costs = measurements.costs();
  EXPECT_TRUE(costs.codecs.empty());
  EXPECT_NEAR(costs.device_codecs.at("onebit").encode_fixed_s, 9e-6, 1e-9);
  EXPECT_NEAR(costs.device_codecs.at("onebit").decode_s_per_byte, 0.01e-9, 1e-13);
  EXPECT_DOUBLE_EQ(costs.copy.value(), 0.1e-9);
  EXPECT_EQ(costs.inter, MeasuredLink());
}

TEST(Measurements, WhatTheDeviceOfOneRankDoesNotComputeIsNotComputedOnDevices) {
  std::vector<MeasuredCosts> ranks(3);
  for (std::size_t m = 0; m < 3; ++m) {
    ranks[m].copy = 1e-9 * static_cast<double>(m + 1);
    ranks[m].device_codecs["onebit"].encode_s_per_byte = 1e-9 * static_cast<double>(m + 1);
    if (m != 1) ranks[m].device_codecs["threelc"] = {};
  }
  const CostTable table = measured_over(reduce(ranks), CostTable());
  ASSERT_EQ(table.device_codecs.size(), 1U);
  EXPECT_DOUBLE_EQ(table.device_codecs.at("onebit").encode_s_per_byte, 2e-9);
  EXPECT_DOUBLE_EQ(table.copy_s_per_byte, 3e-9);
}

TEST(Measurements, WhatTheRuntimeTakesOfAProcessorIsThatOfTheLeastStep) {
  Measurements measurements;
  EXPECT_FALSE(measurements.costs().operation.has_value());
  EXPECT_FALSE(measurements.costs().inter.processor_s_per_byte.has_value());
  for (const double seconds : {900e-6, 80e-6, 95e-6}) measurements.add({CostKind::operation, {}, 3, seconds});
  EXPECT_NEAR(measurements.costs().operation.value(), 80e-6 - 2 * 3 * CostTable().inter.message_s, 1e-12)
      << "without its bodies' messages, sent and received";
  measurements.add({CostKind::inter_processor, {}, 1e6, 1e-6});  // the time of these bytes is in the next period
  measurements.add({CostKind::inter_processor, {}, 1e6, 1e-3});
  EXPECT_NEAR(measurements.costs().inter.processor_s_per_byte.value(), 0.5005e-9, 1e-15);
  const CostTable table = measured_over(measurements.costs(), CostTable());
  EXPECT_EQ(table.operation_s, measurements.costs().operation);
  EXPECT_EQ(table.inter.processor_s_per_byte, measurements.costs().inter.processor_s_per_byte);
}

TEST(Measurements, ProcessorsAreThoseOfTheMachineOnWhichARankHasLeast) {
  std::vector<MeasuredCosts> ranks(5);
  const auto processors = [&] { return measured_over(reduce(ranks), CostTable()).processors; };
  for (std::size_t m = 0; m < 4; ++m) ranks[m].processors = {.machine = 7 + m / 3, .usable = 8};
  ranks[4].processors = {.machine = 0, .usable = 4};
  EXPECT_DOUBLE_EQ(processors(), 8.0 / 3);
  ranks[1].processors.usable = 6;
  EXPECT_DOUBLE_EQ(processors(), 6.0 / 3) << "of those that one may use";
  for (MeasuredCosts& rank : ranks) rank.processors = {.machine = 0, .usable = 4};
  EXPECT_DOUBLE_EQ(processors(), 4) << "all are bound";
}

TEST(Measurements, TravelAsBytesAndForeignBytesAreRefused) {
  MeasuredCosts costs;
  costs.processors = {.machine = 7, .usable = 3};
  costs.intra = {70e-6, 0.25e-9, {}};
  costs.inter.processor_s_per_byte = 0.5e-9;
  costs.operation = 20e-6;
  costs.copy = 0.5e-9;
  costs.device_codecs["onebit"] = {5, 6, 7, 8};
  costs.codecs["terngrad(bits=2)"] = {1, 2, 3, 4};
  std::vector<std::byte> bytes;
  put(bytes, costs);
  EXPECT_EQ(get_measured_costs(bytes), costs);
  bytes.pop_back();
  EXPECT_THROW(get_measured_costs(bytes), CorruptPayload);
  bytes.clear();
  costs.processors.usable = 0;
  put(bytes, costs);
  EXPECT_THROW(get_measured_costs(bytes), CorruptPayload);
  costs.processors.usable = 1;
  costs.codecs["terngrad(bits=2)"].decode_fixed_s = std::numeric_limits<double>::quiet_NaN();
  bytes.clear();
  put(bytes, costs);
  EXPECT_THROW(get_measured_costs(bytes), CorruptPayload);
}

class MeasuredPlanningTest : public ::testing::Test {
 protected:
  /// Both ranks tell `bytes`, and what follows is computed at once.
  static void tell(MeasuredPlanning& root, const std::vector<std::byte>& bytes) {
    for (const std::uint32_t rank : {0U, 1U}) root.costs_of(rank, bytes);
    compute(root);
  }
  static void compute(MeasuredPlanning& root) {
    const auto work = root.work();
    ASSERT_NE(work, nullptr);
    work->run();
    EXPECT_TRUE(root.worked(*work));
  }
  MeasuredPlanning make(std::map<std::string, GradientPlan, std::less<>> fixed = {}) const {
    MeasuredPlanning::Options options;
    options.host_of = separate_hosts(2);
    options.fixed = std::move(fixed);
    return MeasuredPlanning(options, [](const LogRecord&) {});
  }
  /// What a rank tells on which a codec takes `codec` and a link `link` seconds per byte.
  static std::vector<std::byte> costs(double codec, double link) {
    MeasuredCosts costs;
    costs.inter.seconds_per_byte = link;
    for (const char* spec : {"onebit", "fp16"}) costs.codecs[spec] = {0, codec, 0, codec};
    std::vector<std::byte> bytes;
    put(bytes, costs);
    return bytes;
  }
};

TEST_F(MeasuredPlanningTest, TimesEachCandidateOnceAndTellsAfterTheWarmUp) {
  MeasuredPlanning planning = make();
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  EXPECT_TRUE(planning.define("named", gradient_of(1 << 20, "onebit")).empty());
  EXPECT_TRUE(planning.define("small", gradient_of(100, "auto(onebit)")).empty());
  EXPECT_FALSE(planning.measuring());
  EXPECT_EQ(planning.define("a", open), std::vector<std::string>{"onebit"});
  EXPECT_TRUE(planning.define("b", open).empty());
  EXPECT_TRUE(planning.measuring());
  EXPECT_FALSE(planning.costs(open, 4).has_value()) << "no codec was timed yet";
  planning.measured({CostKind::encode, "onebit", 1e6, 1e-3});
  planning.measured({CostKind::decode, "onebit", 1e6, 1e-3});
  EXPECT_FALSE(planning.costs(open, 3).has_value());
  EXPECT_FALSE(planning.costs(gradient_of(1 << 20, "onebit"), 4).has_value());
  planning.measured({CostKind::encode, "terngrad(bits=2)", 1e6, 1e-3});
  planning.measured({CostKind::decode, "terngrad(bits=2)", 1e6, 1e-3});
  EXPECT_TRUE(planning.define("c", gradient_of(1 << 20, "auto(terngrad(bits=2))")).empty()) << "a gradient had it";
  EXPECT_TRUE(planning.costs(open, 4).has_value());
  EXPECT_FALSE(planning.measuring());
  EXPECT_FALSE(planning.costs(open, 5).has_value());
}

TEST_F(MeasuredPlanningTest, AGradientOnADeviceHasTheCostsThatCodecsHaveThere) {
  MeasuredPlanning planning = make();
  const Signature host = gradient_of(1 << 20, "auto(onebit, terngrad)");
  Signature device = host;
  device.memory = MemoryKind::device;
  MeasuredCosts costs;
  costs.inter.seconds_per_byte = 1e-9;
  costs.copy = 0.1e-9;
  for (const char* spec : {"onebit", "terngrad(bits=2)"}) costs.codecs[spec] = {0, 20e-9, 0, 20e-9};
  costs.device_codecs["onebit"] = {0, 0.02e-9, 0, 0.01e-9};
  std::vector<std::byte> bytes;
  put(bytes, costs);
  tell(planning, bytes);
  EXPECT_EQ(planning.plan("on the host", host, 0).codec, "none");
  const GradientPlan plan = planning.plan("on the device", device, 0);
  EXPECT_EQ(plan.codec, "onebit");
  EXPECT_EQ(plan.measured_encode_s_per_byte, 0.02e-9);
  EXPECT_EQ(plan.measured_decode_s_per_byte, 0.01e-9);
}

TEST_F(MeasuredPlanningTest, OnADeviceTheCodecsAreTimedThatCompete) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  Signature open = gradient_of(1 << 20, "auto(onebit, terngrad)");
  EXPECT_FALSE(MeasuredPlanning::weighs(options, "w", open, "onebit")) << "it is on the host";
  open.memory = MemoryKind::device;
  EXPECT_TRUE(MeasuredPlanning::weighs(options, "w", open, "onebit"));
  EXPECT_TRUE(MeasuredPlanning::weighs(options, "w", open, "terngrad"));
  EXPECT_FALSE(MeasuredPlanning::weighs(options, "w", open, "threelc"));
  open.compression = "onebit";
  EXPECT_FALSE(MeasuredPlanning::weighs(options, "w", open, "onebit")) << "there is nothing to decide";
  open.compression = "always(auto)";
  EXPECT_TRUE(MeasuredPlanning::weighs(options, "w", open, "onebit"));
  options.host_of = separate_hosts(1);
  EXPECT_FALSE(MeasuredPlanning::weighs(options, "w", open, "onebit"));
}

TEST_F(MeasuredPlanningTest, ADeterministicPlanHangsOnItsGradientAlone) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(5);
  options.deterministic = true;
  const auto planned = [&](bool reversed, const char* codec) {
    MeasuredPlanning planning(options, [](const LogRecord&) {});
    std::map<std::string, GradientPlan> plans;
    for (int i = 0; i < 12; ++i) {
      const int number = reversed ? 11 - i : i;
      const Signature signature = gradient_of(20'000 + 9'000 * number, codec);
      const std::string name = "w" + std::to_string(number);
      EXPECT_TRUE(planning.define(name, signature).empty()) << "nothing is timed";
      plans[name] = planning.plan(name, signature, 1);
      EXPECT_EQ(plans[name].until, 0U);
      EXPECT_FALSE(planning.costs(signature, 100).has_value());
      EXPECT_FALSE(planning.re_plan(name, signature, plans[name], 50).has_value());
    }
    EXPECT_FALSE(planning.measuring());
    EXPECT_EQ(planning.work(), nullptr);
    return plans;
  };
  for (const char* codec : {"onebit", "none", "auto", "auto(onebit, fp16)", "covap(onebit, interval=3)"}) {
    const auto plans = planned(false, codec);
    EXPECT_EQ(plans, planned(true, codec)) << codec;
    std::set<std::uint32_t> first_owners;
    std::set<std::uint32_t> offsets;
    for (const auto& [name, plan] : plans) {
      first_owners.insert(plan.first_owner);
      offsets.insert(plan.offset);
    }
    EXPECT_EQ(offsets.size(), interval_of(codec)) << codec;
    if (codec != std::string_view("none")) {
      EXPECT_GE(first_owners.size(), 3U) << codec;
    }
  }
}

TEST_F(MeasuredPlanningTest, AlwaysOpensSmallGradientsToo) {
  MeasuredPlanning planning = make();
  const Signature open = gradient_of(100, "always(auto(onebit))");
  EXPECT_EQ(planning.define("small", open), std::vector<std::string>{"onebit"});
  EXPECT_FALSE(planning.costs(open, 3).has_value()) << "no codec was timed yet";
}

TEST_F(MeasuredPlanningTest, PlansAgainOnceWhenAllRanksHaveTold) {
  MeasuredPlanning planning = make();
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  const Signature named = gradient_of(1 << 20, "onebit");
  const GradientPlan at_first = planning.plan("a", open, 0);
  const GradientPlan fixed = planning.plan("n", named, 0);
  EXPECT_EQ(std::pair(at_first.codec, at_first.until), std::pair(std::string("none"), 1U)) << "one run for the links";
  const GradientPlan first = planning.re_plan("a", open, at_first, 1).value();
  EXPECT_EQ(std::pair(first.codec, first.until), std::pair(std::string("onebit"), 0U));
  EXPECT_EQ(first.epoch, 0U);
  planning.costs_of(0, costs(20e-9, 0.1e-9));
  EXPECT_FALSE(planning.re_plan("a", open, first, 4).has_value());
  planning.costs_of(1, costs(20e-9, 0.1e-9));
  EXPECT_FALSE(planning.re_plan("a", open, first, 4).has_value()) << "until it is computed";
  compute(planning);
  EXPECT_FALSE(planning.re_plan("n", named, fixed, 4).has_value());
  const auto second = planning.re_plan("a", open, first, 4);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->codec, "none");
  EXPECT_EQ(second->epoch, 1U);
  EXPECT_NE(second->reason.find("measured"), std::string::npos) << second->reason;
  EXPECT_EQ(second->payload_bytes, std::uint64_t{4} << 20U);
  EXPECT_EQ(second->predicted_s, second->uncompressed_s);
  EXPECT_GT(second->predicted_s, 0);
  EXPECT_EQ(second->measured_inter_s_per_byte, 0.1e-9);
  EXPECT_EQ(second->measured_encode_s_per_byte, 0) << "none encodes nothing";
  EXPECT_LT(first.predicted_s, first.uncompressed_s);
  EXPECT_LT(first.payload_bytes, std::uint64_t{4} << 20U);
  EXPECT_EQ(first.measured_inter_s_per_byte, 0) << "a prior is not measured";
  EXPECT_FALSE(planning.re_plan("a", open, *second, 4).has_value()) << "frozen";
  EXPECT_EQ(planning.plan("late", open, 0).codec, "none") << "a later gradient is planned from what is known by then";
}

/// A step of onebit takes 80 ms, of none 100 ms; the cost model thinks that none is faster.
TEST_F(MeasuredPlanningTest, WaysAreComparedByTheTimeOfStepsAndTheFastestStays) {
  std::vector<std::string> said;
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  MeasuredPlanning planning(options, [&](const LogRecord& record) { said.push_back(record.text); });
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  GradientPlan plan = planning.plan("a", open, 0);
  EXPECT_FALSE(planning.step_began(0, true));
  planning.stepped({});  // nothing was under way
  for (const double rest_s : {9e-3, 5e-3, 6e-3}) planning.stepped({.measured_s = 0.1, .rest_s = rest_s});
  tell(planning, costs(20e-9, 0.1e-9));
  Nanoseconds now = 0;
  std::uint32_t step = 4;
  bool changed = true;
  for (; said.empty(); ++step) {
    if (changed) plan = planning.re_plan("a", open, plan, step).value_or(plan);
    EXPECT_EQ(plan.reason.starts_with("measured, on trial, "), true) << plan.reason;
    EXPECT_FALSE(planning.re_plan("a", open, plan, step).has_value()) << "nothing has changed since";
    now += plan.codec == "onebit" ? 80'000'000 : 100'000'000;
    changed = planning.step_began(now, true);
  }
  EXPECT_LE(step, 4U + 31);
  EXPECT_EQ(said.front(),
            "auto: none 100 ms a step, onebit 80 ms: onebit stays; predicted: the step 173 ms, 6.12 ms with none");
  plan = planning.re_plan("a", open, plan, step).value_or(plan);
  EXPECT_EQ(plan.codec, "onebit");
  EXPECT_NE(plan.reason.find("compared, none 100 ms a step, onebit 80 ms: onebit stays"), std::string::npos);
  EXPECT_FALSE(planning.step_began(now + 1, true));
  EXPECT_EQ(planning.plan("late", open, step).codec, "onebit");
  planning.closing();
  EXPECT_EQ(said.size(), 1U);
}

/// Each of many gradients alone goes faster uncompressed. In a step the processor would do nothing meanwhile: so a part
/// of them is compressed.
TEST_F(MeasuredPlanningTest, TheFirstPlanThatIsComparedIsThatOfTheWholeModel) {
  MeasuredPlanning planning = make();
  const Signature open = gradient_of(1 << 22, "auto(onebit)");
  const auto name = [](int g) { return "g" + std::to_string(g); };
  std::map<std::string, GradientPlan> before;
  for (int g = 0; g < 8; ++g) before[name(g)] = planning.plan(name(g), open, 0);
  planning.plan("named", gradient_of(1 << 20, "fp16"), 0);
  tell(planning, costs(3e-9, 4e-9));
  std::map<std::string, int> codecs;
  for (int g = 0; g < 8; ++g) {
    const GradientPlan plan = planning.re_plan(name(g), open, before[name(g)], 4).value_or(before[name(g)]);
    ++codecs[plan.codec];
    EXPECT_TRUE(plan.on_trial);
    EXPECT_NE(plan.reason.find("; the step "), std::string::npos) << plan.reason;
    EXPECT_NE(plan.reason.find(" with none"), std::string::npos) << plan.reason;
    const bool whole = plan.reason.find("auto, for the step as a whole: onebit") != std::string::npos;
    EXPECT_EQ(whole, plan.codec == "onebit") << plan.reason;
  }
  EXPECT_GT(codecs["none"], 0);
  EXPECT_GT(codecs["onebit"], 0);
}

TEST_F(MeasuredPlanningTest, WhatIsToldWhileItPlansIsNotPlannedToo) {
  MeasuredPlanning planning = make();
  planning.plan("a", gradient_of(1 << 20, "auto"), 0);
  for (const std::uint32_t rank : {0U, 1U}) planning.costs_of(rank, costs(20e-9, 0.1e-9));
  EXPECT_NE(planning.work(), nullptr);
  EXPECT_EQ(planning.work(), nullptr) << "once";
  for (const std::uint32_t rank : {0U, 1U}) planning.costs_of(rank, costs(20e-9, 0.1e-9));
  EXPECT_EQ(planning.work(), nullptr);
}

TEST_F(MeasuredPlanningTest, InALargeWorldRoutesAreCountedBeforeTheFirstPlan) {
  const Signature open = gradient_of(1 << 20, "auto");
  const auto work_in = [&](std::uint32_t members) {
    MeasuredPlanning::Options options;
    options.host_of = separate_hosts(members);
    MeasuredPlanning planning(options, [](const LogRecord&) {});
    Signature barrier;
    barrier.kind = OpKind::barrier;
    EXPECT_EQ(planning.work_for("barrier", barrier, 0), nullptr);
    const auto work = planning.work_for("a", open, 0);
    if (work == nullptr) return false;
    work->run();
    EXPECT_FALSE(planning.worked(*work)) << "no plan has changed";
    EXPECT_EQ(planning.work_for("a", open, 0), nullptr) << "once";
    EXPECT_EQ(planning.plan("a", open, 0).codec, "none");
    EXPECT_EQ(planning.plan("a", open, 1).codec, "onebit");
    return true;
  };
  EXPECT_FALSE(work_in(MeasuredPlanning::kCountsAtOnce));
  EXPECT_TRUE(work_in(MeasuredPlanning::kCountsAtOnce + 1));
}

TEST_F(MeasuredPlanningTest, ACutComparisonSaysSo) {
  std::vector<std::string> said;
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  MeasuredPlanning planning(options, [&](const LogRecord& record) { said.push_back(record.text); });
  planning.plan("a", gradient_of(1 << 20, "auto"), 0);
  planning.closing();
  EXPECT_TRUE(said.empty()) << "nothing was compared";
  tell(planning, costs(20e-9, 0.1e-9));
  planning.closing();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said.front().find("training ended before"), std::string::npos);
}

TEST_F(MeasuredPlanningTest, AFixedPlanHoldsUnlessTheUserNamesAnotherCodec) {
  GradientPlan saved;
  saved.codec = "fp16";
  saved.topology = "ring";
  saved.partitions = 3;
  saved.epoch = 1;
  saved.reason = "saved";
  MeasuredPlanning planning = make({{"a", saved}});
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  EXPECT_TRUE(planning.define("a", open).empty());
  EXPECT_EQ(planning.plan("a", open, 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "fp16"), 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "always(fp16)"), 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "always(auto)"), 0), saved);
  EXPECT_EQ(planning.plan("a", gradient_of(1 << 20, "onebit"), 0).codec, "onebit");
  tell(planning, costs(20e-9, 0.1e-9));
  EXPECT_FALSE(planning.re_plan("a", open, saved, 4).has_value());
}

TEST_F(MeasuredPlanningTest, APlanThatIsFixedLaterTakesThePlaceOfAnother) {
  MeasuredPlanning planning = make();
  const Signature open = gradient_of(1 << 20, "auto(onebit)");
  const Signature named = gradient_of(1 << 20, "onebit");
  const GradientPlan at_first = planning.plan("a", open, 0);
  const GradientPlan first = planning.re_plan("a", open, at_first, 1).value();
  const GradientPlan other = planning.plan("n", named, 0);
  GradientPlan saved = first;
  saved.codec = "fp16";
  saved.epoch = 1;
  planning.fix({{"a", saved}, {"n", saved}, {"late", saved}});
  EXPECT_EQ(planning.re_plan("a", open, first, 2), saved);
  EXPECT_FALSE(planning.re_plan("a", open, saved, 3).has_value());
  EXPECT_FALSE(planning.re_plan("n", named, other, 2).has_value()) << "the user named its codec";
  EXPECT_EQ(planning.plan("late", open, 0), saved);
}

TEST_F(MeasuredPlanningTest, APlanThatIsOverIsFollowedByTheNext) {
  MeasuredPlanning planning = make();
  Signature matrix = gradient_of(1 << 20, "test_lowrank(start=7)");
  matrix.shape = {1024, 1024};
  const GradientPlan first = planning.plan("a", matrix, 0);
  EXPECT_EQ(first.until, 7U);
  EXPECT_FALSE(planning.re_plan("a", matrix, first, 6).has_value());
  const auto second = planning.re_plan("a", matrix, first, 7);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->codec, "test_lowrank(start=7)");
  EXPECT_FALSE(planning.re_plan("a", matrix, *second, 8).has_value());
  EXPECT_EQ(planning.plan("late", matrix, 9).codec, "test_lowrank(start=7)");
}

TEST_F(MeasuredPlanningTest, AFixedPlanWaitsForItsCodec) {
  GradientPlan saved;
  saved.topology = "ps";
  saved.codec = "test_lowrank(start=7)";
  GradientPlan over;  // saved before its codec began
  over.until = 5;
  MeasuredPlanning planning = make({{"a", saved}, {"b", over}});
  Signature matrix = gradient_of(1 << 20, "auto(onebit)");
  matrix.shape = {1024, 1024};
  const GradientPlan first = planning.plan("a", matrix, 0);
  EXPECT_EQ(first.codec, "none");
  EXPECT_EQ(first.until, 7U);
  EXPECT_EQ(planning.re_plan("a", matrix, first, 7), saved);
  EXPECT_EQ(planning.plan("b", matrix, 0), over);
  EXPECT_EQ(planning.re_plan("b", matrix, over, 5)->until, 0U);
}

/// The script's word and the file's: neither wins in silence.
TEST_F(MeasuredPlanningTest, AFixedPlanOfAnotherTopologyThanTheUserNamesIsRefusedWithBoth) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  options.fixed["a"].codec = "fp16";
  options.fixed["a"].topology = "ring";
  const auto said = [&](const Signature& signature) -> std::string {
    try {
      MeasuredPlanning::check(options, "a", signature);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return {};
  };
  for (const char* codec : {"auto", "fp16"}) {
    const std::string text = said(gradient_of(1 << 20, codec, "ps"));
    for (const char* part : {"tensor a", "topology ring", "topology ps", "leave the topology out", "take the plan out"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    EXPECT_EQ(said(gradient_of(1 << 20, codec, "ring")), "");
    EXPECT_EQ(said(gradient_of(1 << 20, codec, "auto")), "");
  }
  EXPECT_EQ(said(gradient_of(1 << 20, "none", "ps")), "") << "another codec is named, so the plan is left alone";
  EXPECT_EQ(said(gradient_of(0, "fp16", "ps")), "") << "nothing is sent";
  options.host_of = separate_hosts(1);
  EXPECT_EQ(said(gradient_of(1 << 20, "fp16", "ps")), "") << "nothing is sent";
}

TEST_F(MeasuredPlanningTest, AFixedPlanThatCannotBeIsRefusedByName) {
  MeasuredPlanning::Options options;
  options.host_of = separate_hosts(2);
  const Signature open = gradient_of(1 << 20, "auto");
  options.fixed["a"].codec = "no-such-codec";
  EXPECT_THROW(MeasuredPlanning::check(options, "a", open), InvalidArgument);
  options.fixed["a"].codec = "onebit";
  EXPECT_NO_THROW(MeasuredPlanning::check(options, "a", open));
  Signature integers = open;
  integers.dtype = DType::int32;
  EXPECT_THROW(MeasuredPlanning::check(options, "a", integers), InvalidArgument);
  for (const std::uint32_t partitions : {0U, kPartitionLimit + 1}) {
    options.fixed["a"].partitions = partitions;
    EXPECT_THROW(MeasuredPlanning::check(options, "a", open), InvalidArgument) << partitions;
  }
  Signature adasum = gradient_of(1 << 20);
  adasum.op = ReduceOp::adasum;
  options.fixed["a"] = {};
  options.fixed["a"].partitions = 2;
  EXPECT_THROW(MeasuredPlanning::check(options, "a", adasum), InvalidArgument);
  options.fixed["a"].partitions = 1;
  EXPECT_NO_THROW(MeasuredPlanning::check(options, "a", adasum));
  EXPECT_NO_THROW(MeasuredPlanning::check(options, "b", open));
}

}  // namespace
}  // namespace casync
