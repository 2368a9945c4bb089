// The local policy: every link gets its turn, none more than its share, nothing waits for nothing.
#include "coordinator/local_policy.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <random>

#include "casync/error.hpp"

namespace casync {
namespace {

std::vector<SendRequest> decide(LocalPolicy& policy) {
  LinkPolicy::Outcome outcome;
  policy.decide(0, outcome);
  EXPECT_TRUE(outcome.messages.empty());
  std::vector<SendRequest> released;
  for (const auto& batch : outcome.release) released.insert(released.end(), batch.begin(), batch.end());
  return released;
}

TEST(LocalPolicy, DecidesNothingFromNothing) {
  LocalPolicy policy(0, 4, {});
  EXPECT_TRUE(decide(policy).empty());
  LocalPolicy alone(0, 1, {});
  EXPECT_TRUE(decide(alone).empty());
}

TEST(LocalPolicy, VisitsPeersFromTheNextOneOn) {
  LocalPolicy policy(2, 4, {});
  for (const Rank peer : std::vector<Rank>{0, 1, 3}) policy.add({0, 0, peer, 100});
  const auto released = decide(policy);
  ASSERT_EQ(released.size(), 3U);
  EXPECT_EQ(released[0].peer, 3);
  EXPECT_EQ(released[1].peer, 0);
  EXPECT_EQ(released[2].peer, 1);
}

TEST(LocalPolicy, KeepsEachLinkWithinItsShareButNeverIdle) {
  LocalPolicy policy(0, 3, {.per_link = 100, .uplink = 1000});
  policy.add({0, 0, 1, 500});  // larger than the share: goes alone
  policy.add({0, 1, 1, 10});
  policy.add({0, 2, 2, 60});
  policy.add({0, 3, 2, 60});
  const auto first = decide(policy);
  ASSERT_EQ(first.size(), 2U);
  policy.sent(1, 500);
  const auto second = decide(policy);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].task, 1U);
}

TEST(LocalPolicy, AFullUplinkHoldsBackAllButOneAtATime) {
  LocalPolicy policy(0, 3, {.per_link = 100, .uplink = 100});
  for (std::uint32_t t = 0; t < 4; ++t) policy.add({0, t, static_cast<Rank>(1 + t % 2), 100});
  EXPECT_EQ(decide(policy).size(), 1U);
  EXPECT_TRUE(decide(policy).empty());
  policy.sent(1, 100);
  EXPECT_EQ(decide(policy).size(), 1U);
}

TEST(LocalPolicy, OfWhatWaitsForALinkAHigherPriorityLeavesFirst) {
  LocalPolicy policy(0, 2, {.per_link = 100, .uplink = 1000});
  const std::vector<std::int32_t> priorities{0, 0, 3, -1, 3, 0, 7};
  policy.add({0, 99, 1, 100, -8});
  decide(policy);  // it is under way, and nothing overtakes it
  for (std::uint32_t task = 0; task < priorities.size(); ++task) policy.add({0, task, 1, 100, priorities[task]});
  std::vector<std::uint32_t> order;
  while (policy.queued() > 0) {
    policy.sent(1, 100);
    for (const SendRequest& request : decide(policy)) order.push_back(request.task);
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{6, 2, 4, 0, 1, 5, 3}));
}

/// A step's sends come in the order of a backward pass, the highest priority last, or are all alike.
TEST(LocalPolicy, ASendInAQueueOfAnyLengthCostsTheSame) {
  const auto seconds = [](std::uint32_t sends, std::int32_t rise) {
    LocalPolicy policy(0, 2, {});
    const std::clock_t begin = std::clock();
    for (std::uint32_t task = 0; task < sends; ++task) {
      policy.add({0, task, 1, 100, static_cast<std::int32_t>(task) * rise});
    }
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / sends;
  };
  for (const std::int32_t rise : {0, 1, -1}) EXPECT_LT(seconds(200'000, rise), 2e-5) << rise;
}

TEST(LocalPolicy, NeverStarvesAnybody) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto members = static_cast<Rank>(2 + random() % 6);
    const LocalPolicy::Options options{.per_link = 1 + random() % 500, .uplink = 1 + random() % 1000};
    LocalPolicy policy(0, members, options);
    std::size_t added = 0;
    std::vector<SendRequest> under_way;
    std::map<Rank, std::uint64_t> load;
    std::size_t released = 0;
    while (added < 100 || released < added) {
      for (std::uint64_t i = random() % 4; i > 0 && added < 100; --i, ++added) {
        policy.add({0, 0, static_cast<Rank>(1 + random() % (members - 1U)), random() % 400});
      }
      for (const SendRequest& request : decide(policy)) {
        EXPECT_TRUE(load[request.peer] == 0 || load[request.peer] + request.bytes <= options.per_link);
        load[request.peer] += request.bytes;
        under_way.push_back(request);
        ++released;
      }
      ASSERT_TRUE(!under_way.empty() || added < 100) << "requests wait and nothing is under way";
      if (under_way.empty()) continue;
      std::swap(under_way[random() % under_way.size()], under_way.back());
      policy.sent(under_way.back().peer, under_way.back().bytes);
      load[under_way.back().peer] -= under_way.back().bytes;
      under_way.pop_back();
    }
  }
}

TEST(LocalPolicy, RefusesMessagesOfAnotherCoordinator) {
  LocalPolicy policy(0, 2, {});
  EXPECT_THROW(policy.control(1, {}), CorruptPayload);
}

}  // namespace
}  // namespace casync
