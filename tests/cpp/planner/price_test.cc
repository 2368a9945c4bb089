// What is counted in a route's workflows gives the equations of the paper where its assumptions hold.
#include "planner/cost/price.hpp"

#include <algorithm>
#include <random>

#include "casync/error.hpp"
#include "planner/paper.hpp"
#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

using test::colocated;
using test::equation;
using test::Factors;
using test::table3;

constexpr double kMiB = 1 << 20;

void expect_factors(const Factors& factors, double alpha, double beta, double gamma) {
  EXPECT_EQ(factors.alpha, alpha);
  EXPECT_EQ(factors.beta, beta);
  EXPECT_EQ(factors.gamma, gamma);
}

TEST(Table3, FourMembers) {
  expect_factors(table3("ring", 4, 4, false), 6, 4, 4);
  expect_factors(table3("ring", 4, 4, true), 6, 1, 1);
  expect_factors(table3("ps", 4, 3, false), 8, 4, 5);
  expect_factors(table3("ps", 4, 3, true), 8, 1, 1);
}

TEST(Table3, SixteenMembers) {
  expect_factors(table3("ring", 16, 5, false), 30, 16, 16);
  expect_factors(table3("ring", 16, 5, true), 30, 1, 1);
  expect_factors(table3("ps", 16, 6, false), 32, 7, 17);
  expect_factors(table3("ps", 16, 6, true), 32, 1, 1);
}

TEST(Table3, ColocatedAsInSection61) {
  expect_factors(colocated("ps", 4, 3, false), 6, 3, 4);
  expect_factors(colocated("ps", 16, 16, false), 30, 16, 16);
  expect_factors(colocated("ps", 16, 16, true), 30, 1, 1);
  expect_factors(colocated("ring", 16, 16, false), 30, 16, 16);
}

/// A link without latency and a codec without fixed cost, so that the equations stand alone.
CostTable plain_costs() {
  CostTable costs;
  costs.inter = {0, 1e-9, 0};
  return costs;
}

double of(const World& world, const char* topology, std::uint32_t partitions, const CostTable& costs, double raw) {
  const auto none = make_codec("none");
  return predict(world, {topology, none->info(), partitions, raw, raw}, costs, {});
}

double of(const World& world, const char* topology, std::uint32_t partitions, const CostTable& costs,
          const CodecCost& codec, double raw, double payload) {
  const auto onebit = make_codec("onebit");
  return predict(world, {topology, onebit->info(), partitions, raw, payload}, costs, codec);
}

TEST(Equation1, IsThatOfThePaper) {
  const CostTable costs = plain_costs();
  for (const std::uint32_t n : {2U, 3U, 4U, 16U}) {
    const World world(separate_hosts(n));
    for (const char* topology : {"ps", "ring"}) {
      const double paper = equation(colocated(topology, n, n, false), n, 1e-9, {}, 64 * kMiB, 64 * kMiB);
      EXPECT_NEAR(of(world, topology, n, costs, 64 * kMiB), paper, 1e-12) << topology << n;
    }
  }
}

/// With a partition for every member all of them do the same. With fewer, an owner encodes less than others, so table 3
/// is what nobody exceeds and its correction what somebody does.
TEST(Equation2, IsThatOfThePaper) {
  const CostTable costs = plain_costs();
  const CodecCost codec{1e-4, 0.2e-9, 1e-5, 0.1e-9};
  const double m = 64 * kMiB;
  const double rm = 2 * kMiB;
  for (const std::uint32_t n : {2U, 3U, 4U, 16U}) {
    const World world(separate_hosts(n));
    for (const char* topology : {"ps", "ring"}) {
      for (std::uint32_t k = 1; k <= n; ++k) {
        const double counted = of(world, topology, k, costs, codec, m, rm);
        const double corrected = equation(colocated(topology, n, k, false), k, 1e-9, codec, m, rm);
        const double printed = equation(table3(topology, n, k, false), k, 1e-9, codec, m, rm);
        EXPECT_LE(corrected, counted + 1e-12) << topology << ", n " << n << ", k " << k;
        EXPECT_LE(counted, printed + 1e-12) << topology << ", n " << n << ", k " << k;
        if (k == n) {
          EXPECT_NEAR(counted, corrected, 1e-12) << topology << ", n " << n;
        }
      }
    }
  }
}

TEST(Equation2, PayloadsThatMergeAreEncodedAndDecodedOnce) {
  const CostTable costs = plain_costs();
  const CodecCost codec{1e-4, 0.2e-9, 1e-5, 0.1e-9};
  const auto rounds = make_codec("test_tworound");
  const World world(separate_hosts(4));
  const double paper = equation(colocated("ps", 4, 1, true), 1, 1e-9, codec, 64 * kMiB, 2 * kMiB);
  EXPECT_NEAR(predict(world, {"ps", rounds->info(), 1, 64 * kMiB, 2 * kMiB}, costs, codec), paper, 1e-12);
}

TEST(Latency, IsPricedPerHopNotPerTransfer) {
  CostTable costs;
  costs.inter = {1, 0, 0};
  const World world(separate_hosts(16));
  EXPECT_DOUBLE_EQ(of(world, "direct", 1, costs, kMiB), 1);
  EXPECT_DOUBLE_EQ(of(world, "ps", 16, costs, kMiB), 2);
  EXPECT_DOUBLE_EQ(of(world, "ring", 16, costs, kMiB), 30);
  EXPECT_DOUBLE_EQ(of(world, "ps", 64, costs, kMiB), 2) << "paid once for all batches";
}

TEST(Batches, LinkAndProcessorOverlapBetweenThem) {
  const CostTable costs = plain_costs();
  const World world(separate_hosts(4));
  const double m = 64 * kMiB;
  const CodecCost codec{0, 0.2e-9, 0, 0.1e-9};
  // K = 12: three batches of 4 partitions of m/12 raw and rm/12 encoded bytes.
  for (const double rm : {2 * kMiB, 60 * kMiB}) {
    const double link = 6 * 1e-9 * rm / 12;
    const double compute = (4 * 0.2e-9 + 4 * 0.1e-9) * m / 12;
    EXPECT_NEAR(of(world, "ps", 12, costs, codec, m, rm), link + compute + 2 * std::max(link, compute), 1e-12);
  }
  EXPECT_NEAR(of(world, "ring", 12, costs, m), 6 * 1e-9 * m / 4, 1e-12) << "same bytes as K = N";
}

TEST(Batches, PartialLastBatchIsCharged) {
  const CostTable costs = plain_costs();
  EXPECT_NEAR(of(World(separate_hosts(4)), "ps", 5, costs, kMiB), 2 * 6 * 1e-9 * kMiB / 5, 1e-15) << "ceil(5/4) = 2";
}

TEST(Direct, EveryPayloadGoesToEveryMember) {
  const CostTable costs = plain_costs();
  const World world(separate_hosts(4));
  EXPECT_NEAR(of(world, "direct", 1, costs, kMiB), 3e-9 * kMiB, 1e-15);
  EXPECT_NEAR(of(world, "direct", 1, costs, {0, 1e-9, 0, 1e-9}, kMiB, 1000), 3e-6 + 5e-9 * kMiB, 1e-12)
      << "one encode, four decodes";
}

TEST(TwoLevel, WithOneRankPerHostIsTheParameterServer) {
  CostTable costs;
  const World world(separate_hosts(4));
  const CodecCost codec{1e-6, 0.2e-9, 1e-6, 0.1e-9};
  for (const std::uint32_t k : {1U, 3U, 4U, 12U}) {
    EXPECT_NEAR(of(world, "two_level", k, costs, codec, 64 * kMiB, 2 * kMiB),
                of(world, "ps", k, costs, codec, 64 * kMiB, 2 * kMiB), 1e-12);
    EXPECT_NEAR(of(world, "two_level", k, costs, kMiB), of(world, "ps", k, costs, kMiB), 1e-12);
  }
}

TEST(TwoLevel, SavesTheNetworkWhatTheRanksOfAHostShare) {
  CostTable costs = plain_costs();
  costs.intra = {0, 0, 0};
  const World world(shared_hosts(4, 2));
  // Flat: 2 ranks at a NIC, each 2 * 7/8 of the gradient, 6 of 7 parts of it to other hosts. Two levels: 2 * 3/4 per
  // host.
  EXPECT_NEAR(of(world, "ps", 8, costs, kMiB), 1e-9 * kMiB * 2 * 2 * 6 / 8, 1e-12);
  EXPECT_NEAR(of(world, "two_level", 8, costs, kMiB), 1e-9 * kMiB * 2 * 3 / 4, 1e-12);
}

TEST(Predictions, WorldsOfOneAndEmptyGradientsCostNothing) {
  const CostTable costs;
  EXPECT_EQ(of(World(separate_hosts(1)), "ps", 1, costs, kMiB), 0);
  EXPECT_EQ(of(World(separate_hosts(4)), "ps", 1, costs, 0), 0);
}

}  // namespace
}  // namespace casync
