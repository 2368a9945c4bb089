// Values of table 3 (paper: section 3.3) and of equations 1 and 2, worked by hand.
#include <algorithm>
#include <random>

#include "casync/error.hpp"
#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

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

TEST(Table3, HasOnlyTwoRows) { EXPECT_THROW(table3("direct", 4, 1, false), InternalError); }

/// A link without latency and a codec without fixed cost, so that the equations stand alone.
CostTable plain_costs() {
  CostTable costs;
  costs.inter = {0, 1e-9, 0};
  return costs;
}

TEST(Equation1, OnFourAndSixteenMembers) {
  const CostTable costs = plain_costs();
  for (const char* topology : {"ps", "ring"}) {
    for (const auto& [n, alpha] : {std::pair{4U, 6.0}, std::pair{16U, 30.0}}) {
      const auto host_of = separate_hosts(n);
      for (const std::uint32_t k : {1U, 2U, 4U}) {
        EXPECT_NEAR(predict_original({topology, host_of, k}, costs, 64 * kMiB), alpha * 64 * kMiB / k * 1e-9, 1e-12);
      }
    }
  }
}

TEST(Equation2, OnFourAndSixteenMembers) {
  const CostTable costs = plain_costs();
  const CodecCost codec{0, 0.2e-9, 0, 0.1e-9};
  const double m = 64 * kMiB;
  const double rm = 2 * kMiB;
  const auto expect = [&](const char* topology, std::uint32_t n, std::uint32_t k, bool mergeable, double alpha,
                          double beta, double gamma) {
    const auto host_of = separate_hosts(n);
    EXPECT_NEAR(predict_compressed({topology, host_of, k}, costs, codec, mergeable, m, rm),
                alpha * 1e-9 * rm / k + beta * 0.2e-9 * m / k + gamma * 0.1e-9 * m / k, 1e-12);
  };
  expect("ring", 4, 4, false, 6, 4, 4);
  expect("ring", 16, 16, false, 30, 16, 16);
  expect("ring", 16, 5, true, 30, 1, 1);
  expect("ps", 4, 3, false, 6, 3, 4);
  expect("ps", 16, 6, false, 30, 6, 16);
  expect("ps", 16, 6, true, 30, 1, 1);
}

TEST(Equation2, FixedCostsCountPerCall) {
  const CostTable costs = plain_costs();
  const auto host_of = separate_hosts(4);
  const Way way{"ps", host_of, 4};
  const double without = predict_compressed(way, costs, {}, false, kMiB, 0);
  EXPECT_NEAR(predict_compressed(way, costs, {1, 0, 0.1, 0}, false, kMiB, 0) - without, 4 * 1 + 4 * 0.1, 1e-12);
}

TEST(Latency, IsPricedPerHopNotPerTransfer) {
  CostTable costs;
  costs.inter = {1, 0, 0};
  const auto host_of = separate_hosts(16);
  EXPECT_DOUBLE_EQ(predict_original({"direct", host_of, 1}, costs, kMiB), 1);
  EXPECT_DOUBLE_EQ(predict_original({"ps", host_of, 16}, costs, kMiB), 2);
  EXPECT_DOUBLE_EQ(predict_original({"ring", host_of, 16}, costs, kMiB), 30);
  EXPECT_DOUBLE_EQ(predict_original({"ps", host_of, 64}, costs, kMiB), 2) << "paid once for all batches";
}

TEST(Batches, LinkAndProcessorOverlapBetweenThem) {
  const CostTable costs = plain_costs();
  const auto host_of = separate_hosts(4);
  const double m = 64 * kMiB;
  const CodecCost codec{0, 0.2e-9, 0, 0.1e-9};
  // K = 12: three batches of 4 partitions of m/12 raw and rm/12 encoded bytes.
  for (const double rm : {2 * kMiB, 60 * kMiB}) {
    const double link = 6 * 1e-9 * rm / 12;
    const double compute = (4 * 0.2e-9 + 4 * 0.1e-9) * m / 12;
    EXPECT_NEAR(predict_compressed({"ps", host_of, 12}, costs, codec, false, m, rm),
                link + compute + 2 * std::max(link, compute), 1e-12);
  }
  EXPECT_NEAR(predict_original({"ring", host_of, 12}, costs, m), 6 * 1e-9 * m / 4, 1e-12) << "same bytes as K = N";
}

TEST(Batches, PartialLastBatchIsCharged) {
  const CostTable costs = plain_costs();
  const auto host_of = separate_hosts(4);
  const double five = predict_original({"ps", host_of, 5}, costs, kMiB);
  EXPECT_NEAR(five, 2 * 6 * 1e-9 * kMiB / 5, 1e-15) << "ceil(5/4) = 2";
}

TEST(Equation2, IsConvexInKUpToN) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<std::uint32_t>(3 + random() % 30);
    const auto host_of = separate_hosts(n);
    CostTable costs;
    costs.inter = {1e-6 * static_cast<double>(random() % 200), 1e-11 * static_cast<double>(random() % 1000), 0};
    const CodecCost codec{1e-7 * static_cast<double>(random() % 1000), 1e-12 * static_cast<double>(random() % 1000),
                          1e-7 * static_cast<double>(random() % 1000), 1e-12 * static_cast<double>(random() % 1000)};
    for (const char* topology : {"ps", "ring"}) {
      const auto at = [&](std::uint32_t k) {
        return predict_compressed({topology, host_of, k}, costs, codec, round % 2 == 0, 1e7, 3e5);
      };
      for (std::uint32_t k = 2; k < n; ++k) EXPECT_LE(2 * at(k), at(k - 1) + at(k + 1) + 1e-12);
    }
  }
}

TEST(Direct, EveryPayloadGoesToEveryMember) {
  const CostTable costs = plain_costs();
  const auto host_of = separate_hosts(4);
  EXPECT_NEAR(predict_original({"direct", host_of, 1}, costs, kMiB), 3e-9 * kMiB, 1e-15);
  EXPECT_NEAR(predict_compressed({"direct", host_of, 1}, costs, {0, 1e-9, 0, 1e-9}, false, kMiB, 1000),
              3e-6 + 5e-9 * kMiB, 1e-12)
      << "one encode, four decodes";
}

TEST(TwoLevel, WithOneRankPerHostIsTheParameterServer) {
  CostTable costs;
  const auto host_of = separate_hosts(4);
  const CodecCost codec{1e-6, 0.2e-9, 1e-6, 0.1e-9};
  costs.inter.message_s = 0;
  for (const std::uint32_t k : {1U, 3U, 4U, 12U}) {
    EXPECT_NEAR(predict_compressed({"two_level", host_of, k}, costs, codec, false, 64 * kMiB, 2 * kMiB),
                predict_compressed({"ps", host_of, k}, costs, codec, false, 64 * kMiB, 2 * kMiB), 1e-12);
    EXPECT_NEAR(predict_original({"two_level", host_of, k}, costs, kMiB),
                predict_original({"ps", host_of, k}, costs, kMiB), 1e-12);
  }
}

TEST(TwoLevel, SavesTheNetworkWhatTheRanksOfAHostShare) {
  CostTable costs = plain_costs();
  costs.intra = {0, 0, 0};
  const auto host_of = shared_hosts(4, 2);
  // Flat: 2 ranks at a NIC, each 2 * 7/8 of the gradient, 6 of 7 parts of it to other hosts. Two levels: 2 * 3/4 per
  // host.
  EXPECT_NEAR(predict_original({"ps", host_of, 8}, costs, kMiB), 1e-9 * kMiB * 2 * 2 * 6 / 8, 1e-12);
  EXPECT_NEAR(predict_original({"two_level", host_of, 8}, costs, kMiB), 1e-9 * kMiB * 2 * 3 / 4, 1e-12);
}

TEST(Predictions, WorldsOfOneAndEmptyGradientsCostNothing) {
  const CostTable costs;
  const std::vector<std::uint32_t> one{0};
  EXPECT_EQ(predict_original({"ps", one, 1}, costs, kMiB), 0);
  const auto host_of = separate_hosts(4);
  EXPECT_EQ(predict_original({"ps", host_of, 1}, costs, 0), 0);
}

}  // namespace
}  // namespace casync
