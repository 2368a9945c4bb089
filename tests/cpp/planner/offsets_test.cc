// Which gradients go in which of several steps, and who owns what goes in one of them.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/hash.hpp"
#include "planner/plan_fixture.hpp"
#include "planner/search/assign_offsets.hpp"

namespace casync {
namespace {

GradientPlan plan_of(std::uint32_t period, std::uint64_t bytes, std::uint32_t partitions = 1) {
  GradientPlan plan;
  plan.topology = "ps";
  plan.partitions = partitions;
  plan.period = period;
  plan.payload_bytes = bytes;
  return plan;
}

/// The offsets of gradients of these payloads, which come in this order.
std::vector<std::uint32_t> offsets_of(std::uint32_t period, const std::vector<std::uint64_t>& payloads) {
  OffsetDealer dealer(separate_hosts(2));
  std::vector<std::uint32_t> offsets;
  for (const std::uint64_t bytes : payloads) {
    GradientPlan plan = plan_of(period, bytes);
    dealer.deal("w" + std::to_string(offsets.size()), plan);
    offsets.push_back(plan.offset);
  }
  return offsets;
}

using Offsets = std::vector<std::uint32_t>;

TEST(OffsetDealer, TheOffsetWithFewestBytesIsNextAndTheLowestOfEquals) {
  EXPECT_EQ(offsets_of(3, {10, 10, 10, 10}), (Offsets{0, 1, 2, 0}));
  EXPECT_EQ(offsets_of(3, {10, 4, 5, 1, 1, 1}), (Offsets{0, 1, 2, 1, 1, 2})) << "4, then 5 and 5, then 6 and 5";
  EXPECT_EQ(offsets_of(2, {100, 10, 10, 10, 10}), (Offsets{0, 1, 1, 1, 1}));
}

TEST(OffsetDealer, EachPeriodIsDealtForItself) {
  OffsetDealer dealer(separate_hosts(2));
  GradientPlan plan = plan_of(2, 100);
  dealer.deal("a", plan);
  for (const std::uint32_t expected : {0U, 1U, 2U}) {
    plan = plan_of(3, 7);
    dealer.deal("b" + std::to_string(expected), plan);
    EXPECT_EQ(plan.offset, expected);
  }
  plan = plan_of(2, 1);
  dealer.deal("c", plan);
  EXPECT_EQ(plan.offset, 1U);
}

TEST(OffsetDealer, AGradientKeepsItsOffsetUntilItIsForgotten) {
  OffsetDealer dealer(separate_hosts(2));
  GradientPlan plan = plan_of(2, 100);
  dealer.deal("a", plan);
  GradientPlan other = plan_of(2, 10);
  dealer.deal("b", other);
  EXPECT_EQ(other.offset, 1U);
  plan = plan_of(2, 1);
  dealer.deal("a", plan);
  EXPECT_EQ(plan.offset, 0U) << "though it has another codec now";
  GradientPlan third = plan_of(2, 5);
  dealer.deal("c", third);
  EXPECT_EQ(third.offset, 0U) << "1 byte goes in it, not 101";
  dealer.forget("b");
  GradientPlan fourth = plan_of(2, 5);
  dealer.deal("d", fourth);
  EXPECT_EQ(fourth.offset, 1U) << "which is empty";
  plan = plan_of(4, 1);
  dealer.deal("a", plan);
  EXPECT_EQ(plan.offset, 0U) << "of the first that go in one of four";
  dealer.forget("nobody");
}

TEST(OffsetDealer, AGradientKeepsItsOffsetThoughItWouldNowHaveAnother) {
  OffsetDealer dealer(separate_hosts(2));
  GradientPlan first = plan_of(2, 10);
  dealer.deal("a", first);
  GradientPlan plan = plan_of(2, 20);
  dealer.deal("b", plan);
  plan = plan_of(2, 30);
  dealer.deal("c", plan);
  EXPECT_EQ(plan.offset, 0U) << "with a";
  dealer.deal("a", first);
  EXPECT_EQ(first.offset, 0U) << "with 30 bytes, where the other has 20";
}

TEST(OffsetDealer, NoStepSendsMoreThanTheMeanAndOneGradient) {
  std::mt19937 random(5);
  for (std::uint32_t period = 2; period <= 8; ++period) {
    OffsetDealer dealer(separate_hosts(4));
    std::vector<std::uint64_t> bytes(period);
    std::uint64_t largest = 0;
    for (int gradient = 0; gradient < 100; ++gradient) {
      GradientPlan plan = plan_of(period, 1 + random() % 5'000'000);
      dealer.deal("w" + std::to_string(gradient), plan);
      ASSERT_LT(plan.offset, period);
      bytes[plan.offset] += plan.payload_bytes;
      largest = std::max(largest, plan.payload_bytes);
    }
    const std::uint64_t mean = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}) / period;
    EXPECT_LE(*std::ranges::max_element(bytes), mean + largest) << period;
  }
}

/// The trap of ranks and steps with a common divisor: owners that are dealt in turn, beside offsets that are, would
/// leave each step to one rank.
TEST(OffsetDealer, EachStepHasItsOwnersSpreadOverTheRanks) {
  for (const std::uint32_t n : {2U, 3U, 4U, 8U}) {
    for (std::uint32_t period = 2; period <= 8; ++period) {
      OffsetDealer dealer(separate_hosts(n));
      std::map<std::uint32_t, std::map<std::uint32_t, int>> owned;  // by offset and owner: gradients
      for (std::uint32_t gradient = 0; gradient < 6 * n * period; ++gradient) {
        GradientPlan plan = plan_of(period, 1000);
        dealer.deal("w" + std::to_string(gradient), plan);
        ++owned[plan.offset][plan.first_owner];
      }
      ASSERT_EQ(owned.size(), period);
      for (const auto& [offset, by_owner] : owned) {
        ASSERT_EQ(by_owner.size(), n) << "of " << n << " ranks, in step " << offset << " of " << period;
        for (const auto& [owner, gradients] : by_owner) EXPECT_EQ(gradients, 6);
      }
    }
  }
}

TEST(OffsetDealer, PartitionsAreOwnedInTurnWithinAStep) {
  OffsetDealer dealer(separate_hosts(4));
  std::vector<std::uint32_t> first_owners;
  for (const std::uint32_t partitions : {3U, 1U, 1U, 2U}) {
    std::set<std::uint32_t> offsets, owners;
    for (int gradient = 0; gradient < 4; ++gradient) {
      GradientPlan plan = plan_of(4, 300 * partitions, partitions);
      dealer.deal(std::to_string(first_owners.size()) + "." + std::to_string(gradient), plan);
      offsets.insert(plan.offset);
      owners.insert(plan.first_owner);
    }
    EXPECT_EQ(offsets.size(), 4U);
    EXPECT_EQ(owners.size(), 1U) << "each step begins anew";
    first_owners.push_back(*owners.begin());
  }
  EXPECT_EQ(first_owners, (Offsets{0, 3, 0, 1}));
}

TEST(OffsetByName, IsSpreadEvenlyAndDoesNotFollowFromTheOwner) {
  for (std::uint32_t period = 2; period <= 8; ++period) {
    for (const std::uint32_t ranks : {2U, 4U, 8U}) {
      std::map<std::uint64_t, std::set<std::uint32_t>> seen;  // by owner
      std::vector<int> gradients(period);
      for (int number = 0; number < 800; ++number) {
        const std::string name = "allreduce.layers." + std::to_string(number) + ".weight";
        const std::uint32_t offset = offset_by_name(name, period);
        ASSERT_LT(offset, period);
        ++gradients[offset];
        seen[hash_text(name) % ranks].insert(offset);
      }
      for (const int count : gradients) EXPECT_NEAR(count, 800.0 / period, 5 * std::sqrt(800.0 / period)) << period;
      for (const auto& [owner, offsets] : seen) EXPECT_EQ(offsets.size(), period) << "of owner " << owner;
    }
  }
  EXPECT_EQ(offset_by_name("w", 1), 0U);
}

/// A gradient of as many partitions as the period has steps, or more, goes in all of them.
TEST(OffsetDealer, LargeGradientsAreDividedAmongTheStepsAndTheOwners) {
  for (const std::uint32_t n : {2U, 4U, 8U}) {
    for (std::uint32_t period = 2; period <= 8; ++period) {
      OffsetDealer dealer(separate_hosts(n));
      std::mt19937 random(period);
      std::vector<double> bytes(period);
      std::vector<std::vector<double>> owned(period, std::vector<double>(n));
      for (int gradient = 0; gradient < 40; ++gradient) {
        GradientPlan plan = plan_of(period, 0, 1 + static_cast<std::uint32_t>(random() % 60));
        plan.payload_bytes = 1000 * plan.partitions;
        dealer.deal("w" + std::to_string(gradient), plan);
        for (std::uint32_t p = 0; p < plan.partitions; ++p) {
          const std::uint32_t turn = plan.partitions < period ? 0 : p * period / plan.partitions;
          const std::uint32_t step = (plan.offset + turn) % period;
          bytes[step] += 1000;
          owned[step][(plan.first_owner + p) % n] += 1000;
        }
      }
      const double mean = std::accumulate(bytes.begin(), bytes.end(), 0.0) / period;
      EXPECT_LE(*std::ranges::max_element(bytes), 1.05 * mean) << "of " << period;
      for (std::uint32_t step = 0; step < period; ++step) {
        EXPECT_LE(*std::ranges::max_element(owned[step]), bytes[step] / n + 3000) << n << " ranks, period " << period;
      }
    }
  }
}

TEST(OffsetDealer, TurnsHaveNeighbouringPartitionsAndAboutAsMany) {
  for (std::uint32_t period = 1; period <= 8; ++period) {
    for (std::uint32_t partitions = 0; partitions <= 40; ++partitions) {
      std::int64_t next = 0;
      for (std::uint32_t turn = 0; turn < period; ++turn) {
        const Range range = partitions_of(turn, period, partitions);
        if (partitions < period) {
          EXPECT_EQ(range, (Range{0, turn == 0 ? std::int64_t{partitions} : 0}));
          continue;
        }
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), partitions / period);
        EXPECT_LE(range.size(), (partitions + period - 1) / period);
        next = range.end;
      }
      EXPECT_EQ(next, partitions < period ? 0 : partitions);
    }
  }
}

}  // namespace
}  // namespace casync
