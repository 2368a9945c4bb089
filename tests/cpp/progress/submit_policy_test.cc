// When submits are taken up: at once, or, where all are small, together.
#include "progress/submit_policy.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;

TEST(SubmitPolicy, TakesAGradientUpAtOnceUnlessATurnWasLately) {
  SubmitPolicy policy;
  EXPECT_TRUE(policy.submitted(0, false).turn);
  policy.taken(0);
  EXPECT_FALSE(policy.submitted(SubmitPolicy::kStale - 1, false).turn);
  EXPECT_TRUE(policy.submitted(SubmitPolicy::kStale, false).turn);
}

TEST(SubmitPolicy, NeverLeavesAGradientToTheThreadThatSubmitted) {
  SubmitPolicy policy;
  EXPECT_EQ(policy.submitted(0, false).rest, 0);
  EXPECT_EQ(policy.submitted(10 * kMicrosecond, false).rest, 0);
}

TEST(SubmitPolicy, GathersSmallOperationsForAsLongAsItHolds) {
  SubmitPolicy policy;
  Nanoseconds now = 0;
  int submits = 0;
  for (; !policy.submitted(now, true).turn; now += 2 * kMicrosecond) ++submits;
  EXPECT_EQ(now, SubmitPolicy::kHold);
  EXPECT_EQ(submits, SubmitPolicy::kHold / (2 * kMicrosecond));
  policy.taken(now);
  EXPECT_FALSE(policy.submitted(now + SubmitPolicy::kStale, true).turn) << "the next ones are held as long";
}

TEST(SubmitPolicy, HoldsFromTheFirstSubmitThatNoTurnHasTakenUp) {
  SubmitPolicy policy;
  EXPECT_FALSE(policy.submitted(0, true).turn);
  policy.taken(SubmitPolicy::kHold / 2);  // somebody waited
  EXPECT_FALSE(policy.submitted(SubmitPolicy::kHold, true).turn);
  EXPECT_TRUE(policy.submitted(2 * SubmitPolicy::kHold, true).turn);
}

TEST(SubmitPolicy, LeavesSmallOperationsToTheirSubmitterForAWhileOnly) {
  SubmitPolicy policy;
  const Nanoseconds rest = policy.submitted(0, true).rest;
  EXPECT_GT(rest, 0);
  EXPECT_LE(rest, 1'000 * kMicrosecond);
}

TEST(SubmitPolicy, AdvisesNoTurnInAWorldOfOne) {
  SubmitPolicy policy(true);
  for (const bool small : {false, true}) {
    for (const Nanoseconds now : {Nanoseconds{0}, SubmitPolicy::kStale, SubmitPolicy::kHold, 3 * SubmitPolicy::kHold}) {
      EXPECT_FALSE(policy.submitted(now, small).turn);
      EXPECT_GT(policy.submitted(now, small).rest, 0);
    }
  }
}

TEST(SubmitPolicy, LetsNothingWaitThatNobodyComesBackFor) {
  SubmitPolicy policy;
  EXPECT_TRUE(policy.submitted(0, true, false).turn);
  policy.taken(0);
  EXPECT_EQ(policy.submitted(SubmitPolicy::kStale - 1, true, false).rest, 0);
  EXPECT_TRUE(policy.submitted(SubmitPolicy::kStale, true, false).turn);
  SubmitPolicy alone(true);
  EXPECT_FALSE(alone.submitted(0, true, false).turn);
  EXPECT_EQ(alone.submitted(0, true, false).rest, 0);
}

TEST(SubmitPolicy, WhatIsHeldGoesWithTheGradientThatFollows) {
  SubmitPolicy policy;
  policy.taken(0);
  EXPECT_FALSE(policy.submitted(SubmitPolicy::kStale, true).turn);
  EXPECT_TRUE(policy.submitted(SubmitPolicy::kStale, false).turn);
}

}  // namespace
}  // namespace casync
