// Silence: asked after the interval, given up after the timeout, and never for a rank that itself slept.
#include "engine/heartbeat.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

using Ranks = std::vector<std::uint32_t>;

TEST(Heartbeat, AsksSilentPeersOncePerInterval) {
  Heartbeat heartbeat(1, 3, {});
  EXPECT_EQ(heartbeat.check(2 * kSecond).ask, (Ranks{0, 2}));
  EXPECT_TRUE(heartbeat.check(2 * kSecond + kSecond / 2).ask.empty());
  EXPECT_EQ(heartbeat.check(3 * kSecond).ask, (Ranks{0, 2}));
}

TEST(Heartbeat, GivesUpAPeerThatDoesNotAnswerAndNamesIt) {
  Heartbeat heartbeat(0, 3, {});
  Heartbeat::Outcome last;
  for (Nanoseconds now = kSecond; now <= 9 * kSecond; now += kSecond) {
    last = heartbeat.check(now);
    heartbeat.heard(1);
    EXPECT_EQ(last.lost.size(), now < 9 * kSecond ? 0U : 1U) << now;
  }
  ASSERT_EQ(last.lost.size(), 1U);
  EXPECT_EQ(last.lost[0].first, 2U);
  EXPECT_NE(last.lost[0].second.find("rank 2"), std::string::npos);
  EXPECT_TRUE(heartbeat.check(10 * kSecond).lost.empty());  // once
}

TEST(Heartbeat, ForgivesWhenThisRankItselfWasStopped) {
  Heartbeat heartbeat(0, 2, {});
  heartbeat.check(kSecond);
  EXPECT_TRUE(heartbeat.check(60 * kSecond).lost.empty());
  EXPECT_TRUE(heartbeat.check(61 * kSecond).lost.empty());
}

TEST(Heartbeat, QuestionsAreVoidWhileNothingIsWaitedFor) {
  Heartbeat heartbeat(0, 2, {});
  for (Nanoseconds now = kSecond; now <= 8 * kSecond; now += kSecond) heartbeat.check(now);
  heartbeat.rest();
  EXPECT_TRUE(heartbeat.check(9 * kSecond).lost.empty());
}

TEST(Heartbeat, NeverAsksWhoHasLeft) {
  Heartbeat heartbeat(0, 2, {});
  heartbeat.gone(1);
  EXPECT_TRUE(heartbeat.check(5 * kSecond).ask.empty());
}

}  // namespace
}  // namespace casync
