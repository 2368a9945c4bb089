// When something that hangs is ended, and what happens where that hangs too.
#include "cuda/watchdog.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace casync::cuda {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;

TEST(Judge, SleepsWhileNothingIsWaitedFor) {
  EXPECT_EQ(judge(100, {.patience = 10}).verdict, Verdict::sleep);
  EXPECT_EQ(judge(100, {.patience = 10}).at, kLongestTime);
}
TEST(Judge, LooksAgainWhenItIsOverdueAndNotBefore) {
  EXPECT_EQ(judge(109, {.patience = 10, .waits_since = 100}).verdict, Verdict::sleep);
  EXPECT_EQ(judge(109, {.patience = 10, .waits_since = 100}).at, 110);
  EXPECT_EQ(judge(110, {.patience = 10, .waits_since = 100}).verdict, Verdict::look_again);
}
TEST(Judge, ReleasesWhatIsCondemnedAtOnce) {
  EXPECT_EQ(judge(0, {.patience = 10, .is_condemned = true}).verdict, Verdict::release);
  EXPECT_EQ(judge(0, {.patience = 10, .waits_since = 0, .is_condemned = true}).verdict, Verdict::release);
}
TEST(Judge, ExitsWhenTheEndIsOverdue) {
  Watch watch{.patience = 10, .is_condemned = true, .release_patience = 5, .releases_since = 100};
  EXPECT_EQ(judge(104, watch).verdict, Verdict::sleep);
  EXPECT_EQ(judge(104, watch).at, 105);
  EXPECT_EQ(judge(105, watch).verdict, Verdict::exit);
  watch.is_released = true;
  EXPECT_EQ(judge(105, watch).verdict, Verdict::sleep);
}

/// Counts what a watchdog calls.
struct Calls {
  std::atomic<int> looks{0};
  std::atomic<int> releases{0};
  std::atomic<int> rings{0};
  std::atomic<bool> waits{true};

  Watchdog::Calls all() {
    return {.look_again =
                [this] {
                  ++looks;
                  return waits.load();
                },
            .release = [this] { ++releases; },
            .ring = [this] { ++rings; }};
  }
};

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(Watchdog, ReleasesWhatIsOverdueOnceAndRings) {
  Calls calls;
  Watchdog watchdog("a test", 30 * kMillisecond, calls.all());
  watchdog.wait_begins();
  while (calls.rings == 0) sleep_ms(1);
  EXPECT_TRUE(watchdog.is_condemned());
  EXPECT_EQ(watchdog.why(), "it did not go on for 0.03 s");
  watchdog.release("later");
  EXPECT_EQ(calls.releases, 1);
  EXPECT_EQ(watchdog.why(), "it did not go on for 0.03 s");
}

TEST(Watchdog, LeavesAloneWhatGoesOnOrIsNotWaitedFor) {
  Calls calls;
  Watchdog watchdog("a test", 500 * kMillisecond, calls.all());
  for (int i = 0; i < 60; ++i) {
    watchdog.wait_begins();
    sleep_ms(10);
  }
  watchdog.wait_ends();
  sleep_ms(600);
  EXPECT_EQ(calls.looks, 0);
  EXPECT_FALSE(watchdog.is_condemned());
}

TEST(Watchdog, LeavesAloneWhatHasGoneOnWhereNobodyLooked) {
  std::atomic<int> looks{0};
  Watchdog* self = nullptr;
  Watchdog watchdog("a test", 20 * kMillisecond,
                    {.look_again =
                         [&] {
                           ++looks;
                           self->wait_ends();
                           return false;
                         },
                     .release = [] {},
                     .ring = [] {}});
  self = &watchdog;
  watchdog.wait_begins();
  sleep_ms(200);
  EXPECT_EQ(looks, 1);
  EXPECT_FALSE(watchdog.is_condemned());
}

TEST(Watchdog, ItsEndReleasesWhatWasNeverCondemned) {
  Calls calls;
  {
    const Watchdog watchdog("a test", kLongestTime, calls.all());
  }
  EXPECT_EQ(calls.releases, 1);
}

TEST(Watchdog, EndsTheProcessThatCannotReleaseIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    Watchdog watchdog("a test", kLongestTime,
                      {.look_again = [] { return true; }, .release = [] { sleep_ms(60'000); }, .ring = [] {}});
    watchdog.release("it was enough");
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1),
              "casync: a test hangs, and does not end within 5 s of being told to \\(it was enough\\)");
}

}  // namespace
}  // namespace casync::cuda
