// How long who makes progress sleeps. The figures are docs/concurrency.md's.
#include "progress/pause.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;

TEST(Pause, IdleItSleepsLongAndShorterWhereAPeerCannotRing) {
  EXPECT_EQ(pause({.rung = true}), 100 * kMillisecond);
  EXPECT_EQ(pause({.rung = false}), 20 * kMillisecond);
  EXPECT_EQ(pause({.rung = true, .since_news = 3'600'000 * kMillisecond}), 100 * kMillisecond);
}

TEST(Pause, WaitingItSleepsATwentiethOfTheSilence) {
  const auto waiting = [](bool rung, Nanoseconds silence) {
    return pause({.outstanding = true, .rung = rung, .since_news = silence});
  };
  for (const bool rung : {false, true}) {
    EXPECT_EQ(waiting(rung, 0), 20 * kMicrosecond);
    EXPECT_EQ(waiting(rung, 400 * kMicrosecond), 20 * kMicrosecond);
    EXPECT_EQ(waiting(rung, 20 * kMillisecond), kMillisecond);
  }
  EXPECT_EQ(waiting(false, 10'000 * kMillisecond), 5 * kMillisecond);
  EXPECT_EQ(waiting(true, 10'000 * kMillisecond), 50 * kMillisecond);
}

TEST(Pause, WherePeersAreHeardThereIsNothingToLookFor) {
  for (const Nanoseconds silence : {Nanoseconds{0}, 10'000 * kMillisecond}) {
    EXPECT_EQ(pause({.outstanding = true, .rung = true, .heard = true, .since_news = silence}), 50 * kMillisecond);
  }
}

TEST(Pause, WhileBytesMoveItStaysClose) {
  for (const Nanoseconds silence : {Nanoseconds{0}, 1'000 * kMillisecond}) {
    EXPECT_EQ(pause({.outstanding = true, .moving = true, .rung = true, .since_news = silence}), 50 * kMicrosecond);
    EXPECT_EQ(pause({.outstanding = true, .moving = true, .since_news = silence}), 100 * kMicrosecond);
  }
}

TEST(Pause, ItIsOverWhenTheEngineIsDue) {
  for (const bool other : {false, true}) {
    Lull lull{.outstanding = other, .moving = other, .rung = other};
    const Nanoseconds longest = pause(lull);
    for (const Nanoseconds due : {Nanoseconds{0}, 3 * kMicrosecond, longest}) {
      lull.due = due;
      EXPECT_EQ(pause(lull), due);
    }
    lull.due = -kMillisecond;
    EXPECT_EQ(pause(lull), 0) << "it should have been";
    lull.due = longest + 1;
    EXPECT_EQ(pause(lull), longest);
  }
}

}  // namespace
}  // namespace casync
