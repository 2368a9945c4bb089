#include <algorithm>
#include <numeric>
#include <random>

#include "casync/route.hpp"
#include "planner/plan_fixture.hpp"
#include "planner/search/assign_owners.hpp"

namespace casync {
namespace {

using Members = std::vector<double>;

Balance deal(const char* topology, const std::vector<std::uint32_t>& host_of, std::uint32_t partitions, double bytes,
             const OwnerLoad& load) {
  const std::vector<Rank> owners = make_route(topology)->owners(host_of);
  return deal(owners, static_cast<std::uint32_t>(host_of.size()), partitions, bytes, load);
}

TEST(Balance, OnePartitionGoesToTheLeastLoaded) {
  const auto host_of = separate_hosts(4);
  const Balance balance = deal("ps", host_of, 1, 10, {{5, 3, 1, 2}});
  EXPECT_EQ(balance.first_owner, 2U);
  EXPECT_EQ(balance.load.bytes, (Members{5, 3, 11, 2}));
}

TEST(Balance, PartitionsGoToConsecutiveOwners) {
  const auto host_of = separate_hosts(4);
  const Balance balance = deal("ps", host_of, 2, 10, {{1, 9, 9, 0}});
  EXPECT_EQ(balance.first_owner, 3U) << "members 3 and 0";
  EXPECT_EQ(balance.load.bytes, (Members{11, 9, 9, 10}));
}

TEST(Balance, WholeTurnsStartAtZero) {
  const auto host_of = separate_hosts(3);
  const Balance balance = deal("ring", host_of, 6, 10, {});
  EXPECT_EQ(balance.first_owner, 0U);
  EXPECT_EQ(balance.load.bytes, (Members{20, 20, 20}));
}

TEST(Balance, DirectHasNoOwners) {
  const auto host_of = separate_hosts(3);
  const Balance balance = deal("direct", host_of, 1, 10, {{1, 2, 3}});
  EXPECT_EQ(balance.load.bytes, (Members{1, 2, 3}));
}

TEST(Balance, TwoLevelOwnersAreTheLeadersInTurn) {
  const auto host_of = shared_hosts(2, 2);  // members 0, 1 on host 0; 2, 3 on host 1. Positions: 0, 2, 1, 3.
  const Balance balance = deal("two_level", host_of, 2, 10, {{10, 0, 10, 0}});
  EXPECT_EQ(balance.first_owner, 2U);
  EXPECT_EQ(balance.load.bytes, (Members{10, 10, 10, 10}));
}

TEST(Balance, UnequalHostsGiveEveryRankOfTheLargerATurn) {
  const std::vector<std::uint32_t> host_of{0, 0, 0, 1};
  const Balance balance = deal("two_level", host_of, 6, 1, {});
  EXPECT_EQ(balance.load.bytes, (Members{1, 1, 1, 3}));
}

/// A model's gradients, most of them small, dealt one after another.
TEST_F(PlanTest, NoOwnerHasMoreThanTheMeanAndOnePartition) {
  std::mt19937 random(17);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<std::uint32_t>(2 + random() % 15);
    host_of = separate_hosts(n);
    const char* codec = round % 2 == 0 ? "none" : "onebit";
    load = {};
    double largest = 0;
    for (int gradient = 0; gradient < 100; ++gradient) {
      const auto numel = static_cast<std::int64_t>(1) << (8 + random() % 18);
      const Decision decision = plan(gradient_of(numel + static_cast<std::int64_t>(random()) % numel, codec, "ps"));
      double before = 0;
      double after = 0;
      for (const double bytes : load.bytes) before += bytes;
      for (const double bytes : decision.load.bytes) after += bytes;
      largest = std::max(largest, (after - before) / decision.plan.partitions);
      load = decision.load;
    }
    const double mean = std::accumulate(load.bytes.begin(), load.bytes.end(), 0.0) / n;
    EXPECT_LE(*std::max_element(load.bytes.begin(), load.bytes.end()), mean + largest) << "n=" << n << " " << codec;
  }
}

}  // namespace
}  // namespace casync
