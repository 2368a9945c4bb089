// How long who makes progress sleeps. The figures are docs/concurrency.md's.
#include "progress/idle_sleep.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;

TEST(IdleSleep, IdleItSleepsLongAndShorterWhereAPeerCannotRing) {
  EXPECT_EQ(idle_sleep({.rung = true}), 100 * kMillisecond);
  EXPECT_EQ(idle_sleep({.rung = false}), 20 * kMillisecond);
  EXPECT_EQ(idle_sleep({.rung = true, .since_news = 3'600'000 * kMillisecond}), 100 * kMillisecond);
}

TEST(IdleSleep, WaitingItSleepsATwentiethOfTheSilence) {
  const auto waiting = [](bool rung, Nanoseconds silence) {
    return idle_sleep({.outstanding = true, .rung = rung, .since_news = silence});
  };
  for (const bool rung : {false, true}) {
    EXPECT_EQ(waiting(rung, 0), 20 * kMicrosecond);
    EXPECT_EQ(waiting(rung, 400 * kMicrosecond), 20 * kMicrosecond);
    EXPECT_EQ(waiting(rung, 20 * kMillisecond), kMillisecond);
  }
  EXPECT_EQ(waiting(false, 10'000 * kMillisecond), 5 * kMillisecond);
  EXPECT_EQ(waiting(true, 10'000 * kMillisecond), 50 * kMillisecond);
}

TEST(IdleSleep, WherePeersAreHeardThereIsNothingToLookFor) {
  for (const Nanoseconds silence : {Nanoseconds{0}, 10'000 * kMillisecond}) {
    EXPECT_EQ(idle_sleep({.outstanding = true, .rung = true, .heard = true, .since_news = silence}), 50 * kMillisecond);
  }
}

TEST(IdleSleep, WhileBytesMoveItStaysClose) {
  for (const Nanoseconds silence : {Nanoseconds{0}, 1'000 * kMillisecond}) {
    EXPECT_EQ(idle_sleep({.outstanding = true, .moving = true, .rung = true, .since_news = silence}),
              50 * kMicrosecond);
    EXPECT_EQ(idle_sleep({.outstanding = true, .moving = true, .since_news = silence}), 100 * kMicrosecond);
  }
}

TEST(IdleSleep, ItIsOverWhenTheEngineIsDue) {
  for (const bool other : {false, true}) {
    IdleState idle{.outstanding = other, .moving = other, .rung = other};
    const Nanoseconds longest = idle_sleep(idle);
    for (const Nanoseconds due : {Nanoseconds{0}, 3 * kMicrosecond, longest}) {
      idle.due = due;
      EXPECT_EQ(idle_sleep(idle), due);
    }
    idle.due = -kMillisecond;
    EXPECT_EQ(idle_sleep(idle), 0) << "it should have been";
    idle.due = longest + 1;
    EXPECT_EQ(idle_sleep(idle), longest);
  }
}

}  // namespace
}  // namespace casync
