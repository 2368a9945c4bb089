#include <algorithm>
#include <limits>
#include <random>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "planner/cost/price.hpp"
#include "planner/plan_fixture.hpp"

namespace casync {

std::string PlanTest::refusal(const Signature& signature) const {
  try {
    static_cast<void>(plan(signature));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

namespace {

constexpr std::int64_t kLarge = 16 << 20;  // elements; 64 MiB in float32

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Costs that make every codec hopeless.
void make_codecs_slow(CostTable& costs) {
  for (const char* spec : {"onebit", "fp16", "bf16", "terngrad(bits=2)", "terngrad(bits=4)"}) {
    costs.codecs[spec] = {1, 1e-6, 1, 1e-6};
  }
}

TEST_F(PlanTest, NamedCodecIsObeyedWhateverItCosts) {
  make_codecs_slow(costs);
  const Decision decision = plan(gradient_of(kLarge, "onebit"));
  EXPECT_EQ(decision.plan.codec, "onebit");
  EXPECT_GT(decision.seconds, decision.original_s);
}

TEST_F(PlanTest, CodecIsWrittenCanonically) {
  EXPECT_EQ(plan(gradient_of(kLarge, "terngrad")).plan.codec, make_codec("terngrad")->info().spec);
}

TEST_F(PlanTest, EmptyCompressionIsNone) { EXPECT_EQ(plan(gradient_of(kLarge, "")).plan.codec, "none"); }

TEST_F(PlanTest, SmallGradientsAreNotCompressed) {
  EXPECT_EQ(plan(gradient_of(4095, "onebit")).plan.codec, "none");
  EXPECT_EQ(plan(gradient_of(4095, "auto(onebit)")).plan.codec, "none");
  EXPECT_EQ(plan(gradient_of(4096, "onebit")).plan.codec, "onebit");
  options.min_numel = 0;
  EXPECT_EQ(plan(gradient_of(100, "onebit")).plan.codec, "onebit");
}

TEST_F(PlanTest, AlwaysMeansSmallGradientsToo) {
  for (const std::int64_t numel : {1, 100, 4095, 1 << 20}) {
    EXPECT_EQ(plan(gradient_of(numel, "always(terngrad)")).plan.codec, "terngrad(bits=2)") << numel;
    EXPECT_EQ(plan(gradient_of(numel, "always(none)")).plan.codec, "none") << numel;
  }
  EXPECT_EQ(plan(gradient_of(100, "always(auto(onebit))")).alternatives.size(), 2U) << "still the planner's choice";
  Signature integers = gradient_of(100, "always(onebit)");
  integers.dtype = DType::int32;
  EXPECT_TRUE(says(refusal(integers), "cannot be compressed with onebit"));
}

TEST_F(PlanTest, ACodecThatDoesNotApplyGivesWay) {
  Signature matrix = gradient_of(1 << 20, "test_lowrank(start=1000)");
  matrix.shape = {1024, 1024};
  for (const std::uint32_t step : {0U, 1U, 999U}) {
    const GradientPlan before = plan(matrix, step).plan;
    EXPECT_EQ(before.codec, "none");
    EXPECT_EQ(before.topology, "ring") << "planned as what it is";
    EXPECT_EQ(before.until, 1000U);
    EXPECT_TRUE(says(before.reason, "test_lowrank(start=1000) begins with step 1000: none")) << before.reason;
  }
  EXPECT_EQ(plan(matrix, 1000).plan.codec, "test_lowrank(start=1000)");
  EXPECT_EQ(plan(matrix, 1000).plan.until, 0U);
  const GradientPlan vector = plan(gradient_of(1 << 20, "test_lowrank(start=1000)")).plan;
  EXPECT_EQ(vector.codec, "none");
  EXPECT_EQ(vector.until, 0U) << "for good";
  EXPECT_TRUE(says(vector.reason, "test_lowrank(start=1000) does not apply to 1048576 x 1: none")) << vector.reason;
  matrix.compression = "auto(onebit, test_lowrank(start=1000))";
  EXPECT_EQ(plan(matrix, 0).plan.until, 1000U);
  EXPECT_NE(plan(matrix, 0).plan.codec, "test_lowrank(start=1000)");
  EXPECT_EQ(plan(matrix, 1000).plan.until, 0U);
  matrix.shape = {10, 10};
  EXPECT_EQ(plan(matrix, 0).plan.until, 0U) << "too small for any codec";
}

TEST_F(PlanTest, PayloadsThatAreAveragedTakeARingOnRequest) {
  Signature matrix = gradient_of(1 << 20, "test_lowrank(start=0)");
  matrix.shape = {1024, 1024};
  EXPECT_EQ(plan(matrix).plan.topology, "ps");
  matrix.topology = "ring";
  EXPECT_EQ(plan(matrix).plan.topology, "ring");
}

TEST_F(PlanTest, IntegersWithACodecAreRefusedByName) {
  Signature signature = gradient_of(kLarge, "onebit");
  signature.dtype = DType::int32;
  const std::string text = refusal(signature);
  for (const char* part : {"conv1.weight", "int32", "onebit", "compression=\"none\""})
    EXPECT_TRUE(says(text, part)) << text;
  signature.compression = "none";
  EXPECT_EQ(refusal(signature), "");
}

TEST_F(PlanTest, OpsThatNoCodecCarriesAreRefusedByName) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    Signature signature = gradient_of(kLarge, "fp16");
    signature.op = op;
    const std::string text = refusal(signature);
    EXPECT_TRUE(says(text, "conv1.weight") && says(text, name_of(op)) && says(text, "fp16")) << text;
    signature.compression = "none";
    EXPECT_EQ(refusal(signature), "");
  }
}

TEST_F(PlanTest, AdasumGoesWholeToOnePlace) {
  for (const char* compression : {"none", "fp16", "bf16", "auto", "auto(onebit, fp16)"}) {
    for (const std::int64_t numel : {1, 4096, 1 << 16, 16 << 20}) {
      for (const auto& hosts : {separate_hosts(4), shared_hosts(2, 3)}) {
        host_of = hosts;
        Signature signature = gradient_of(numel, compression);
        signature.op = ReduceOp::adasum;
        const GradientPlan chosen = plan(signature).plan;
        EXPECT_EQ(chosen.partitions, 1U);
        EXPECT_EQ(chosen.topology, numel == 1 ? "direct" : "ps");
        EXPECT_TRUE(takes_adasum(make_codec(chosen.codec)->info())) << chosen.codec;
      }
    }
  }
}

TEST_F(PlanTest, OwnersOfAdasumTakeTurns) {
  Signature signature = gradient_of(kLarge);
  signature.op = ReduceOp::adasum;
  std::vector<std::uint32_t> owners;
  for (int tensor = 0; tensor < 4; ++tensor) {
    const Decision decision = plan(signature);
    owners.push_back(decision.plan.first_owner);
    load = decision.load;
  }
  std::ranges::sort(owners);
  EXPECT_EQ(owners, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST_F(PlanTest, AdasumRefusesByName) {
  Signature signature = gradient_of(kLarge);
  signature.op = ReduceOp::adasum;
  signature.dtype = DType::int64;
  EXPECT_TRUE(says(refusal(signature), "conv1.weight: op Adasum") && says(refusal(signature), "not int64"));
  signature.dtype = DType::float64;
  EXPECT_EQ(refusal(signature), "");
  for (const char* topology : {"ring", "two_level"}) {
    signature.topology = topology;
    EXPECT_TRUE(says(refusal(signature), topology) && says(refusal(signature), "\"ps\"")) << refusal(signature);
  }
  signature.topology = "direct";
  EXPECT_EQ(refusal(signature), "");
  signature.compression = "onebit";
  EXPECT_TRUE(says(refusal(signature), "onebit: its op is Adasum") && says(refusal(signature), "\"fp16\""));
}

TEST_F(PlanTest, AutoLeavesUncompressedWhatNoCodecCarries) {
  Signature signature = gradient_of(kLarge, "auto(onebit)");
  signature.dtype = DType::int64;
  EXPECT_EQ(plan(signature).plan.codec, "none");
  signature = gradient_of(kLarge, "auto");
  signature.op = ReduceOp::max;
  EXPECT_EQ(plan(signature).plan.codec, "none");
}

TEST_F(PlanTest, UnknownNamesAreRefused) {
  EXPECT_TRUE(says(refusal(gradient_of(kLarge, "twobit")), "twobit"));
  const std::string text = refusal(gradient_of(kLarge, "none", "star"));
  EXPECT_TRUE(says(text, "star") && says(text, "two_level")) << text;
}

TEST_F(PlanTest, AutoTakesTheFastestCandidate) {
  const Decision decision = plan(gradient_of(kLarge, "auto(fp16, onebit)"));
  EXPECT_EQ(decision.plan.codec, "onebit");
  ASSERT_EQ(decision.alternatives.size(), 3U);
  for (const Alternative& other : decision.alternatives) EXPECT_LE(decision.seconds, other.seconds);
}

TEST_F(PlanTest, AutoDropsCodecsThatCostMoreThanTheySave) {
  make_codecs_slow(costs);
  EXPECT_EQ(plan(gradient_of(kLarge, "auto")).plan.codec, "none");
  EXPECT_EQ(plan(gradient_of(kLarge, "auto(onebit, terngrad(bits=4))")).plan.codec, "none");
}

TEST_F(PlanTest, AGradientOnADeviceIsCopiedToTheHostUnlessItsCodecIsThere) {
  costs.copy_s_per_byte = 0.1e-9;
  const double copies = 2 * 4 * static_cast<double>(kLarge) * costs.copy_s_per_byte;
  for (const char* codec : {"none", "onebit"}) {
    Signature signature = gradient_of(kLarge, codec);
    const double on_host = plan(signature).seconds;
    signature.memory = MemoryKind::device;
    EXPECT_NEAR(plan(signature).seconds, on_host + copies, 1e-9) << codec;
  }
  costs.device_codecs["onebit"] = costs.of("onebit");
  Signature signature = gradient_of(kLarge, "onebit");
  const double on_host = plan(signature).seconds;
  signature.memory = MemoryKind::device;
  EXPECT_EQ(plan(signature).seconds, on_host);
  EXPECT_GT(plan(signature).original_s, plan(gradient_of(kLarge)).seconds) << "uncompressed it is copied";
  host_of = shared_hosts(2, 2);
  EXPECT_NEAR(plan(signature).seconds, plan(gradient_of(kLarge, "onebit")).seconds + copies, 1e-9)
      << "two levels go through the host";
}

TEST_F(PlanTest, AutoOnAFastLinkLeavesSmallGradientsAndCompressesLargeOnes) {
  costs.inter = {5e-6, 0.1e-9, 0};  // 80 Gbit/s
  costs.codecs["onebit"] = {20e-6, 0.005e-9, 20e-6, 0.005e-9};
  options.direct_limit_bytes = 0;
  EXPECT_EQ(plan(gradient_of(8 << 10, "auto(onebit)")).plan.codec, "none");
  EXPECT_EQ(plan(gradient_of(100 << 20, "auto(onebit)")).plan.codec, "onebit");
}

TEST_F(PlanTest, BareAutoConsidersSixteenBitsForWiderTypesOnly) {
  const auto considered = [&](DType dtype) {
    Signature signature = gradient_of(kLarge, "auto");
    signature.dtype = dtype;
    std::vector<std::string> codecs;
    for (const Alternative& alternative : plan(signature).alternatives) codecs.push_back(alternative.codec);
    std::sort(codecs.begin(), codecs.end());
    return codecs;
  };
  EXPECT_EQ(considered(DType::float32), (std::vector<std::string>{"fp16", "none", "onebit"}));
  EXPECT_EQ(considered(DType::float64), (std::vector<std::string>{"fp16", "none", "onebit"}));
  EXPECT_EQ(considered(DType::bfloat16), (std::vector<std::string>{"none", "onebit"}));
}

TEST_F(PlanTest, SmallPayloadsGoDirectOrToAnOwner) {
  for (const auto& hosts : {host_of, shared_hosts(2, 2)}) {
    host_of = hosts;
    EXPECT_EQ(plan(gradient_of(256)).plan.topology, "direct");
    EXPECT_EQ(plan(gradient_of(257)).plan.topology, "ps");
    EXPECT_EQ(plan(gradient_of(3072)).plan.topology, "ps");
    EXPECT_EQ(plan(gradient_of(4096, "onebit")).plan.topology, "direct");  // half a KiB of payload
  }
  EXPECT_EQ(plan(gradient_of(3073)).plan.topology, "two_level");
}

TEST_F(PlanTest, HostsWithSeveralRanksGoInTwoLevels) {
  host_of = shared_hosts(2, 2);
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.topology, "two_level");
  EXPECT_EQ(plan(gradient_of(kLarge, "onebit")).plan.topology, "two_level");
  host_of = {0, 0, 0, 1};
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.topology, "two_level");
  host_of = shared_hosts(1, 4);
  EXPECT_EQ(plan(gradient_of(kLarge, "onebit")).plan.topology, "ps");
}

TEST_F(PlanTest, NamedTopologyIsObeyed) {
  for (const std::string name : {"direct", "ps", "ring", "two_level"}) {
    EXPECT_EQ(plan(gradient_of(kLarge, "none", name)).plan.topology, name);
    EXPECT_EQ(plan(gradient_of(kLarge, "onebit", name)).plan.topology, name);
    EXPECT_EQ(plan(gradient_of(10, "none", name)).plan.topology, name);
  }
  options.topology = "ring";
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.topology, "ring");
  EXPECT_EQ(plan(gradient_of(kLarge, "none", "ps")).plan.topology, "ps") << "the signature is nearer";
}

TEST_F(PlanTest, RingIsForPayloadsThatMerge) {
  options.ring_from_bytes = 1e12;
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.topology, "ps") << "2 hops instead of 2(N-1)";
  options.ring_from_bytes = 1 << 20;
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.topology, "ring");
  EXPECT_EQ(plan(gradient_of(kLarge, "fp16")).plan.topology, "ring");
  EXPECT_EQ(plan(gradient_of(10000)).plan.topology, "ps");
  EXPECT_EQ(plan(gradient_of(kLarge, "onebit")).plan.topology, "ps");
}

TEST_F(PlanTest, GatherCodecsGoDirectUnlessHostsAreSharedOrARouteIsNamed) {
  EXPECT_EQ(plan(gradient_of(kLarge, "test_topk")).plan.topology, "direct");
  for (const char* route : {"ps", "ring", "two_level"})
    EXPECT_EQ(plan(gradient_of(kLarge, "test_topk", route)).plan.topology, route);
  host_of = shared_hosts(2, 4);
  EXPECT_EQ(plan(gradient_of(kLarge, "test_topk")).plan.topology, "two_level");
  host_of = shared_hosts(1, 4);
  EXPECT_EQ(plan(gradient_of(kLarge, "test_topk")).plan.topology, "direct");
}

TEST_F(PlanTest, AReducescatterTakesTheCodecThatIsNamedIfItReducesInOnePass) {
  const auto scattered = [](std::int64_t numel, const std::string& codec) {
    Signature signature = gradient_of(numel, codec);
    signature.kind = OpKind::reducescatter;
    return signature;
  };
  for (const char* codec : {"none", "fp16", "onebit"}) {
    const Decision decision = plan(scattered(kLarge, codec));
    EXPECT_EQ(decision.plan.codec, codec);
    EXPECT_EQ(decision.plan.topology, "ps");
  }
  EXPECT_EQ(plan(scattered(100, "onebit")).plan.codec, "none") << "too small";
  EXPECT_EQ(plan(scattered(100, "always(onebit)")).plan.codec, "onebit");
  EXPECT_NE(plan(scattered(kLarge, "auto(test_topk, onebit)")).plan.codec, "test_topk");
  for (const char* codec : {"test_topk", "test_tworound", "test_lowrank"}) {
    const std::string text = refusal(scattered(kLarge, codec));
    EXPECT_TRUE(says(text, "conv1.weight") && says(text, codec) && says(text, "onebit")) << text;
  }
}

TEST_F(PlanTest, PartitionsStayWithinTheirLimits) {
  for (const char* codec : {"none", "fp16", "onebit", "terngrad"}) {
    for (const std::int64_t numel : {5000LL, 100'000LL, 1'000'000LL, 30'000'000LL, 100'000'000LL}) {
      const Decision decision = plan(gradient_of(numel, codec));
      const auto made = make_codec(decision.plan.codec);
      const auto payload = static_cast<double>(made->bound({numel, 1}, DType::float32, {0, numel}, 0));
      const double k = decision.plan.partitions;
      EXPECT_LE(payload / k, options.partition_bytes) << codec << " " << numel;
      EXPECT_LE(static_cast<double>(numel) * 4 / k, options.partition_raw_bytes) << codec << " " << numel;
      if (k > 1) {
        EXPECT_TRUE(k <= 16 || decision.plan.partitions % 4 == 0) << "whole rounds of owners";
      }
    }
  }
}

TEST_F(PlanTest, PartitionsMinimiseThePredictionAgainstBruteForce) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<std::uint32_t>(2 + random() % 15);
    host_of = separate_hosts(n);
    costs.inter = {1e-6 * static_cast<double>(random() % 300), 1e-10 * static_cast<double>(1 + random() % 100), 1e-6};
    costs.codecs["onebit"] = {1e-6 * static_cast<double>(random() % 500), 1e-11 * static_cast<double>(random() % 100),
                              1e-6 * static_cast<double>(random() % 500), 1e-11 * static_cast<double>(random() % 100)};
    options.direct_limit_bytes = 0;
    options.partition_bytes = options.partition_raw_bytes = 1e18;
    options.least_partition_bytes = 1;
    const std::int64_t numel = 4096 + static_cast<std::int64_t>(random() % (1 << 25));
    const Decision decision = plan(gradient_of(numel, "onebit"));
    const auto payload = static_cast<double>(make_codec("onebit")->bound({numel, 1}, DType::float32, {0, numel}, 0));
    const World world(host_of);
    const CodecInfo info = make_codec("onebit")->info();
    double least = std::numeric_limits<double>::infinity();
    std::uint32_t best = 0;
    for (std::uint32_t k = 1; k <= 4 * n; ++k) {
      const double seconds =
          predict(world, {"ps", info, k, static_cast<double>(numel) * 4, payload}, costs, costs.of("onebit"));
      if (seconds < least) {
        least = seconds;
        best = k;
      }
    }
    EXPECT_EQ(decision.plan.partitions, best);
    EXPECT_DOUBLE_EQ(decision.seconds, least);
  }
}

TEST_F(PlanTest, WorldsOfOneAndEmptyTensorsNeedNothing) {
  EXPECT_EQ(plan(gradient_of(0, "onebit")).plan.codec, "none");
  host_of = {0};
  const Decision decision = plan(gradient_of(kLarge, "onebit"));
  EXPECT_EQ(decision.plan.codec, "none");
  EXPECT_EQ(decision.plan.partitions, 1U);
  EXPECT_EQ(decision.seconds, 0);
}

TEST_F(PlanTest, OtherKindsAreNotCompressed) {
  Signature signature = gradient_of(kLarge, "none");
  signature.kind = OpKind::broadcast;
  EXPECT_GT(plan(signature).plan.partitions, 1U) << "a chain overlaps its links only in partitions";
  signature.kind = OpKind::allgather;
  EXPECT_EQ(plan(signature).plan.partitions, 1U);
  signature.kind = OpKind::barrier;
  EXPECT_EQ(plan(signature).plan.codec, "none");
}

TEST_F(PlanTest, EpochIsCopied) {
  options.epoch = 9;
  EXPECT_EQ(plan(gradient_of(kLarge)).plan.epoch, 9U);
}

TEST_F(PlanTest, SameRequestGivesTheSamePlan) {
  const Signature signature = gradient_of(kLarge, "auto(onebit, terngrad)");
  EXPECT_EQ(plan(signature).plan, plan(signature).plan);
}

TEST_F(PlanTest, ReasonNamesEveryAlternativeWithItsTime) {
  const std::string reason = plan(gradient_of(kLarge, "auto")).plan.reason;
  for (const char* part : {"auto: onebit", "none", "fp16", " ms", "ps", "partitions of"})
    EXPECT_TRUE(says(reason, part)) << reason;
  EXPECT_TRUE(says(plan(gradient_of(kLarge, "onebit")).plan.reason, "as asked: onebit"));
  EXPECT_TRUE(says(plan(gradient_of(100, "onebit")).plan.reason, "under 4096 elements"));
}

TEST_F(PlanTest, LargeWorldsArePlannedToo) {
  host_of = shared_hosts(64, 8);
  const Decision decision = plan(gradient_of(kLarge, "auto"));
  EXPECT_EQ(decision.plan.topology, "two_level");
  EXPECT_GT(decision.plan.partitions, 1U);
}

}  // namespace
}  // namespace casync
