// When the background thread makes progress: each wake-up condition of docs/concurrency.md that is its own.
#include "progress/background.hpp"

#include <gtest/gtest.h>

#include "progress/waiting.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kNow = 7 * kMillisecond;
constexpr Nanoseconds kNap = 300 * kMicrosecond;

TEST(Background, AfterAGradientItIsAwakeWhenTheSubmitterWouldBe) {  // 2, 3
  const SubmitPolicy::Advice advice{.turn = true, .rest = 0};
  EXPECT_EQ(rests_after_submit(advice, kNow), 0);
  EXPECT_EQ(awake_after_submit(advice, kNow, kNap), kNow + kNap);
}

TEST(Background, AGradientThatSoonFollowsAnotherWaits50MicrosecondsForIt) {  // 4
  const SubmitPolicy::Advice advice{.turn = false, .rest = 0};
  EXPECT_EQ(rests_after_submit(advice, kNow), 0);
  EXPECT_EQ(awake_after_submit(advice, kNow, kNap), kNow + 50 * kMicrosecond);
}

TEST(Background, OfSmallOperationsItRestsAndThenTakesThem) {  // 5
  const SubmitPolicy::Advice advice{.turn = false, .rest = kMillisecond};
  EXPECT_EQ(rests_after_submit(advice, kNow), kNow + kMillisecond);
  EXPECT_EQ(awake_after_submit(advice, kNow, kNap), kNow + kMillisecond);
}

TEST(Background, ItIsParkedWhileAThreadWaitsOrRests) {  // 5, 6
  EXPECT_EQ(parked_until(kNow, 0, 0), std::nullopt);
  EXPECT_EQ(parked_until(kNow, 0, kNow), std::nullopt);
  EXPECT_EQ(parked_until(kNow, 0, kNow + 1), kNow + 1);
  EXPECT_EQ(parked_until(kNow, 1, 0), kNow + 20 * kMillisecond);
  EXPECT_EQ(parked_until(kNow, 2, kNow + 5), kNow + 5);
}

TEST(Background, ItIsBackAMillisecondAfterTheLastWait) {  // 7
  EXPECT_EQ(rests_after_wait(kNow), kNow + kMillisecond);
  EXPECT_EQ(parked_until(kNow + kMillisecond, 0, rests_after_wait(kNow)), std::nullopt);
}

TEST(Waiting, LetsOthersRunBeforeItSleeps) {
  Waiting waiting;
  for (int silent = 0; silent < Waiting::kYields; ++silent) EXPECT_EQ(waiting.after(false), Waiting::Next::yield);
  EXPECT_EQ(waiting.after(false), Waiting::Next::sleep);
  EXPECT_EQ(waiting.after(true), Waiting::Next::turn);
  EXPECT_EQ(waiting.after(false), Waiting::Next::yield);
}

}  // namespace
}  // namespace casync
