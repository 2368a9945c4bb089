// What threads do next, whatever they see: nobody sleeps, waits or calls the program with the role or beside the seat.
#include "progress/thread_steps.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace casync {
namespace {

/// What a thread has after the steps that it has taken; checks that each may be taken.
class Holding {
 public:
  void take(Step step, bool got) {
    switch (step) {
      case Step::try_role:
        EXPECT_FALSE(role_);
        role_ = got;
        break;
      case Step::take_role:
        EXPECT_FALSE(role_);
        role_ = true;
        break;
      case Step::leave_role:
        EXPECT_TRUE(role_);
        role_ = false;
        break;
      case Step::turn:
      case Step::ask:
      case Step::arrange:
      case Step::yield:
        EXPECT_TRUE(role_) << static_cast<int>(step);
        break;
      case Step::try_seat:
        EXPECT_FALSE(seat_);
        seat_ = got;
        break;
      case Step::leave_seat:
        EXPECT_TRUE(seat_);
        EXPECT_FALSE(role_);
        seat_ = false;
        break;
      case Step::sleep:
        EXPECT_TRUE(seat_);
        EXPECT_FALSE(role_);
        break;
      case Step::let_go:
        EXPECT_FALSE(role_);
        EXPECT_TRUE(lock_);
        lock_ = false;
        break;
      case Step::regain:
        EXPECT_FALSE(role_) << "it waits for the program's lock with the role";
        EXPECT_FALSE(lock_);
        lock_ = true;
        break;
      case Step::end:
        EXPECT_TRUE(lock_);
        [[fallthrough]];
      case Step::follow:
      case Step::park:
      case Step::tell:
      case Step::release_progress:
        EXPECT_FALSE(role_) << static_cast<int>(step);
        EXPECT_FALSE(seat_) << static_cast<int>(step);
        break;
      case Step::begin:
      case Step::ring:
      case Step::call:
      case Step::wake_background:
        break;
    }
  }

 private:
  bool role_ = false;
  bool seat_ = false;
  bool lock_ = true;  // of the program
};

Seen anything(std::mt19937& random) {
  const auto toss = [&] { return random() % 2 == 0; };
  return {.got = toss(),
          .news = toss(),
          .ended = toss(),
          .over = random() % 8 == 0,
          .to_tell = random() % 4 == 0,
          .seat = static_cast<Seat>(random() % 3),
          .waiters = static_cast<int>(1 + random() % 3)};
}

template <typename Make>
void walk(const Make& make) {
  std::mt19937 random(1);
  for (int walk = 0; walk < 5000; ++walk) {
    auto steps = make();
    Holding holding;
    Seen seen = anything(random);
    for (int i = 0; i < 200; ++i) {
      const Step step = steps.next(seen);
      seen = anything(random);
      holding.take(step, seen.got);
      if (step == Step::end || testing::Test::HasFailure()) break;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "walk " << walk;
  }
}

TEST(ThreadSteps, AWaiterSleepsWithNothingButTheSeat) {
  walk([] { return WaiterSteps(); });
}

TEST(ThreadSteps, ASubmitWaitsForTheProgramsLockWithNothing) {
  walk([] { return VisitorSteps(VisitorSteps::Kind::submits); });
}

TEST(ThreadSteps, APollTakesATurnAtMost) {
  walk([] { return VisitorSteps(VisitorSteps::Kind::polls); });
}

TEST(ThreadSteps, TheBackgroundThreadSleepsWithNothingButTheSeat) {
  walk([] { return BackgroundSteps(); });
}

/// The steps until `last`, when each sees the next of `all`.
template <typename Steps>
std::vector<Step> until(Step last, Steps& steps, const Seen& seen) {
  std::vector<Step> taken;
  while (taken.size() < 100 && (taken.empty() || taken.back() != last)) taken.push_back(steps.next(seen));
  return taken;
}

TEST(ThreadSteps, AWaiterAloneTakesTheSeatAndTheRole) {
  WaiterSteps steps;
  const auto taken = until(Step::sleep, steps, {.got = true, .waiters = 1});
  EXPECT_EQ((std::vector<Step>{taken.begin(), taken.begin() + 3}),
            (std::vector<Step>{Step::try_seat, Step::take_role, Step::turn}));
  EXPECT_EQ((std::vector<Step>{taken.end() - 2, taken.end()}), (std::vector<Step>{Step::leave_role, Step::sleep}));
}

TEST(ThreadSteps, ASecondWaiterTakesOneTurnAndFollows) {
  WaiterSteps steps;
  EXPECT_EQ(until(Step::follow, steps, {.got = true, .seat = Seat::waiter, .waiters = 2}),
            (std::vector<Step>{Step::try_role, Step::turn, Step::leave_role, Step::ring, Step::follow}));
}

TEST(ThreadSteps, WhatATurnHasEndedIsSeenByTheOthersAtOnce) {
  WaiterSteps steps;
  EXPECT_EQ(until(Step::call, steps, {.got = true, .ended = true, .waiters = 2}),
            (std::vector<Step>{Step::try_seat, Step::take_role, Step::turn, Step::call}));
}

}  // namespace
}  // namespace casync
