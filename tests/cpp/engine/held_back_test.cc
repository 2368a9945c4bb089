// What is said of operations at once, and when.
#include "engine/held_back.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

std::vector<Start> taken(HeldBack<Start>& held, Nanoseconds now) { return held.take(now); }

TEST(HeldBack, OneMessageForAllOfWhichTheSameIsTrue) {
  HeldBack<Start> held(0);
  held.add(7, {.sequence = 3, .settled = 1});
  held.add(5, {.sequence = 2});
  held.add(9, {.sequence = 3, .settled = 1});
  held.add(6, {.sequence = 2, .step = 4});
  held.add(1, {.sequence = 2});
  const std::vector<Start> starts = taken(held, 0);
  ASSERT_EQ(starts.size(), 3U);
  EXPECT_EQ(starts[0].ops, (OpSet{1, 5}));
  EXPECT_EQ(starts[1].ops, (OpSet{6}));
  EXPECT_EQ(starts[1].step, 4U);
  EXPECT_EQ(starts[2].ops, (OpSet{7, 9}));
  EXPECT_EQ(starts[2].settled, 1U);
  EXPECT_TRUE(taken(held, 0).empty()) << "each is said once";
}

TEST(HeldBack, RunsOfOneTensorAreToldInTheirOrder) {
  HeldBack<Ready> held(0);
  held.add(3, {.sequence = 8});  // of another tensor
  held.add(4, {.sequence = 7});
  held.add(4, {.sequence = 8});
  const std::vector<Ready> told = held.take(0);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].sequence, 7U);
  EXPECT_EQ(told[1].ops, (OpSet{3, 4}));
}

TEST(HeldBack, TheFirstGoesAtOnceAndTheNextAfterTheInterval) {
  HeldBack<Start> held(1000);
  EXPECT_EQ(held.wakes_at(), std::nullopt);
  held.add(0, {});
  EXPECT_TRUE(held.due(50));
  taken(held, 50);
  EXPECT_FALSE(held.due(50));
  EXPECT_EQ(held.wakes_at(), std::nullopt) << "there is nothing to say";
  held.add(1, {});
  EXPECT_FALSE(held.due(1049));
  EXPECT_EQ(held.wakes_at(), 1050);
  EXPECT_TRUE(held.due(1050));
  taken(held, 500);  // something else was to be said after it
  held.add(2, {});
  EXPECT_EQ(held.wakes_at(), 1500);
}

TEST(HeldBack, WithoutAnIntervalItIsAlwaysDue) {
  HeldBack<Start> held(0);
  for (const Nanoseconds now : {0, 0, 7, 7}) {
    held.add(0, {});
    EXPECT_TRUE(held.due(now));
    taken(held, now);
  }
}

}  // namespace
}  // namespace casync
