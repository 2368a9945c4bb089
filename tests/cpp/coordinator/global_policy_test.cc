// The global policy: batches by size or by timeout, asked for and granted ahead, one after the other.
#include "coordinator/global_policy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr CoordinatorOptions kOptions{.policy = "global", .batch_bytes = 1000, .timeout = 500};

/// The policies of all ranks. Their messages arrive in the order sent per pair, when the test says so.
class World {
 public:
  explicit World(Rank members, CoordinatorOptions options = kOptions)
      : members_(members), mail_(std::size_t{members} * members) {
    for (Rank rank = 0; rank < members; ++rank) policies_.emplace_back(rank, members, options);
  }

  GlobalPolicy& operator[](Rank rank) { return policies_[rank]; }
  std::vector<LinkPolicy::Outcome::Batch> decide(Rank rank) {
    LinkPolicy::Outcome outcome;
    policies_[rank].decide(now, outcome);
    for (auto& [peer, bytes] : outcome.messages) mail(rank, peer).push_back(std::move(bytes));
    return outcome.release;
  }
  bool deliver(Rank from, Rank to) {
    auto& messages = mail(from, to);
    if (messages.empty()) return false;
    policies_[to].control(from, messages.front());
    messages.pop_front();
    return true;
  }
  void deliver_all() {
    for (Rank from = 0; from < members_; ++from) {
      for (Rank to = 0; to < members_; ++to) {
        while (deliver(from, to)) {
        }
      }
    }
  }
  void left(Rank from, const LinkPolicy::Outcome::Batch& batch) {
    for (const SendRequest& send : batch) policies_[from].sent(send.peer, send.bytes);
  }

  Nanoseconds now = 0;

 private:
  std::deque<std::vector<std::byte>>& mail(Rank from, Rank to) { return mail_[std::size_t{from} * members_ + to]; }
  Rank members_;
  std::deque<GlobalPolicy> policies_;
  std::vector<std::deque<std::vector<std::byte>>> mail_;
};

TEST(GlobalPolicy, DecidesNothingFromNothing) {
  World world(3);
  EXPECT_TRUE(world.decide(0).empty());
  EXPECT_EQ(world[0].wakes_at(), std::nullopt);
  World alone(1);
  EXPECT_TRUE(alone.decide(0).empty());
}

TEST(GlobalPolicy, ABatchGoesWhenItIsFull) {
  World world(2);
  world[1].add({0, 0, 0, 600});
  EXPECT_TRUE(world.decide(1).empty());
  world[1].add({0, 1, 0, 400});
  const auto released = world.decide(1);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].size(), 2U);
  EXPECT_EQ(world[1].queued(), 0U);
}

TEST(GlobalPolicy, ABatchGoesWhenItsFirstMessageHasWaitedLongEnough) {
  World world(2);
  world.now = 1'000;
  world[1].add({0, 0, 0, 10});
  EXPECT_TRUE(world.decide(1).empty());
  EXPECT_EQ(world[1].wakes_at(), 1'500);
  world.now = 1'499;
  world[1].add({0, 1, 0, 10});
  EXPECT_TRUE(world.decide(1).empty());
  world.now = 1'500;
  const auto released = world.decide(1);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].size(), 2U);
}

TEST(GlobalPolicy, NoBatchOfSeveralMessagesIsLargerThanItMay) {
  World world(2);
  for (const std::uint64_t bytes : {400U, 400U, 400U, 5000U, 10U}) world[1].add({0, 0, 0, bytes});
  std::vector<std::size_t> sizes;
  for (int turn = 0; turn < 20; ++turn) {
    for (const auto& batch : world.decide(1)) {
      sizes.push_back(batch.size());
      world.left(1, batch);
    }
    world.deliver_all();
    world.decide(0);
    world.deliver_all();
    world.now += 1'000;
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 1, 1, 1}));
}

/// A rank that rests asks nobody for the link to the next rank: all ranks may do so, for these links share no end.
TEST(GlobalPolicy, TheFirstBatchToTheNextRankWaitsForNoAnswer) {
  World world(4);
  for (Rank rank = 0; rank < 4; ++rank) {
    for (Rank step = 1; step < 4; ++step) world[rank].add({0, step, (rank + step) % 4, 1000});
    const auto released = world.decide(rank);
    ASSERT_EQ(released.size(), 1U) << "rank " << rank;
    EXPECT_EQ(released[0][0].peer, (rank + 1) % 4);
  }
}

TEST(GlobalPolicy, AnotherLinkWaitsForItsGrant) {
  World world(3);
  world[1].add({0, 0, 0, 1000});
  EXPECT_TRUE(world.decide(1).empty());
  world.deliver_all();
  EXPECT_TRUE(world.decide(1).empty());
  world.decide(0);
  world.deliver_all();
  EXPECT_EQ(world.decide(1).size(), 1U);
}

TEST(GlobalPolicy, TheNextBatchIsGrantedWhileOneIsOnItsWayAndGoesWithoutAnAnswer) {
  World world(2);
  for (int i = 0; i < 3; ++i) world[1].add({0, 0, 0, 1000});
  const auto first = world.decide(1);
  ASSERT_EQ(first.size(), 1U);
  world.deliver_all();
  world.decide(0);
  world.deliver_all();
  EXPECT_TRUE(world.decide(1).empty()) << "one after the other";
  world.left(1, first[0]);
  EXPECT_EQ(world.decide(1).size(), 1U) << "no message was delivered in between";
}

/// A grant is for a link, so that a late batch takes the one that was given for another.
TEST(GlobalPolicy, TheBatchOfTheHighestPriorityGoesOnTheNextGrant) {
  World world(2);
  for (std::uint32_t task = 0; task < 3; ++task) world[1].add({0, task, 0, 1000});
  const auto first = world.decide(1);
  ASSERT_EQ(first.size(), 1U);
  world.deliver_all();
  world[1].add({0, 3, 0, 100, 2});  // not full, and asked for by nobody
  world[1].add({0, 4, 0, 100, 1});  // joins it
  std::vector<std::uint32_t> order;
  LinkPolicy::Outcome::Batch under_way = first[0];
  for (int turn = 0; turn < 20; ++turn) {
    world.decide(0);
    world.deliver_all();
    world.left(1, std::exchange(under_way, {}));
    for (const auto& batch : world.decide(1)) {
      for (const SendRequest& send : batch) order.push_back(send.task);
      under_way = batch;
    }
    world.deliver_all();
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{3, 4, 1, 2}));
  EXPECT_EQ(world[1].queued(), 0U) << "who was overtaken asks again";
  EXPECT_EQ(world[1].wakes_at(), std::nullopt);
}

TEST(GlobalPolicy, OfEqualPrioritiesTheFirstBatchGoesFirst) {
  World world(2);
  for (std::uint32_t task = 0; task < 3; ++task) world[1].add({0, task, 0, 1000, 4});
  const auto released = world.decide(1);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0][0].task, 0U);
}

TEST(GlobalPolicy, WhenRankZeroHasLeftEverythingGoesAtOnce) {
  World world(3);
  world[1].add({0, 0, 0, 10});
  world[1].add({0, 1, 2, 10});
  EXPECT_TRUE(world.decide(1).empty());
  world[1].left(0);
  EXPECT_EQ(world.decide(1).size(), 2U);
}

TEST(GlobalPolicy, RefusesMessagesThatMeanNothing) {
  const auto bytes_of = [](std::uint32_t kind, std::uint32_t peer) {
    std::vector<std::byte> bytes(8);
    std::memcpy(bytes.data(), &kind, 4);
    std::memcpy(bytes.data() + 4, &peer, 4);
    return bytes;
  };
  World world(3);
  EXPECT_THROW(world[1].control(0, bytes_of(2, 2)), CorruptPayload) << "a grant that was not asked for";
  EXPECT_THROW(world[1].control(2, bytes_of(0, 0)), CorruptPayload) << "rank 1 grants nothing";
  EXPECT_THROW(world[0].control(1, bytes_of(3, 2)), CorruptPayload) << "nothing was on its way";
  EXPECT_THROW(world[0].control(1, bytes_of(0, 3)), CorruptPayload) << "there is no rank 3";
  EXPECT_THROW(world[0].control(1, bytes_of(7, 2)), CorruptPayload);
  EXPECT_THROW(world[0].control(1, std::vector<std::byte>(5)), CorruptPayload);
}

/// Worlds of 2 to 9 ranks with random sends, messages that take any time, and batches that leave in any order.
TEST(GlobalPolicy, SendsEverythingInOrderOneBatchAtATimeWhateverHappensWhen) {
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t limit) { return static_cast<std::uint32_t>(random() % limit); };
    const Rank members = 2 + below(8);
    World world(members, {.policy = "global", .batch_bytes = 1 + below(2'000), .timeout = 1 + below(1'000)});
    const auto options_bytes = [&] { return 1 + below(1'500); };
    const bool alike = below(2) == 0;  // else sends overtake each other
    std::vector<std::uint32_t> next_task(std::size_t{members} * members, 0);
    std::vector<std::uint32_t> next_released(std::size_t{members} * members, 0);
    std::vector<LinkPolicy::Outcome::Batch> under_way(members);
    std::uint32_t added = 0;
    std::uint32_t released = 0;
    for (int turn = 0; added < 200 || released < added; ++turn) {
      ASSERT_LT(turn, 100'000) << "seed " << seed << ": " << added - released << " sends never go";
      world.now += below(200);
      const Rank rank = below(members);
      if (added < 200 && below(2) == 0) {
        const Rank peer = (rank + 1 + below(members - 1)) % members;
        const auto priority = static_cast<std::int32_t>(alike ? 0 : below(5));
        world[rank].add({rank, next_task[std::size_t{rank} * members + peer]++, peer, options_bytes(), priority});
        ++added;
      }
      world.deliver(below(members), below(members));
      if (!under_way[rank].empty() && below(3) == 0) world.left(rank, std::exchange(under_way[rank], {}));
      for (auto& batch : world.decide(rank)) {
        ASSERT_TRUE(under_way[rank].empty()) << "seed " << seed << ": two batches at a time";
        for (const SendRequest& send : batch) {
          ASSERT_EQ(send.peer, batch.front().peer);
          const std::uint32_t next = next_released[std::size_t{rank} * members + send.peer]++;
          ASSERT_TRUE(send.task == next || !alike) << "out of order";
        }
        released += static_cast<std::uint32_t>(batch.size());
        under_way[rank] = std::move(batch);
      }
    }
  }
}

}  // namespace
}  // namespace casync
