// When submits are taken up: at once, or, where all are small, together.
#include "progress/intake.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr Nanoseconds kMicrosecond = 1'000;

TEST(Intake, TakesAGradientUpAtOnceUnlessATurnWasLately) {
  Intake intake;
  EXPECT_TRUE(intake.submitted(0, false).turn);
  intake.taken(0);
  EXPECT_FALSE(intake.submitted(Intake::kStale - 1, false).turn);
  EXPECT_TRUE(intake.submitted(Intake::kStale, false).turn);
}

TEST(Intake, NeverLeavesAGradientToTheThreadThatSubmitted) {
  Intake intake;
  EXPECT_EQ(intake.submitted(0, false).rest, 0);
  EXPECT_EQ(intake.submitted(10 * kMicrosecond, false).rest, 0);
}

TEST(Intake, GathersSmallOperationsForAsLongAsItHolds) {
  Intake intake;
  Nanoseconds now = 0;
  int submits = 0;
  for (; !intake.submitted(now, true).turn; now += 2 * kMicrosecond) ++submits;
  EXPECT_EQ(now, Intake::kHold);
  EXPECT_EQ(submits, Intake::kHold / (2 * kMicrosecond));
  intake.taken(now);
  EXPECT_FALSE(intake.submitted(now + Intake::kStale, true).turn) << "the next ones are held as long";
}

TEST(Intake, HoldsFromTheFirstSubmitThatNoTurnHasTakenUp) {
  Intake intake;
  EXPECT_FALSE(intake.submitted(0, true).turn);
  intake.taken(Intake::kHold / 2);  // somebody waited
  EXPECT_FALSE(intake.submitted(Intake::kHold, true).turn);
  EXPECT_TRUE(intake.submitted(2 * Intake::kHold, true).turn);
}

TEST(Intake, LeavesSmallOperationsToTheirSubmitterForAWhileOnly) {
  Intake intake;
  const Nanoseconds rest = intake.submitted(0, true).rest;
  EXPECT_GT(rest, 0);
  EXPECT_LE(rest, 1'000 * kMicrosecond);
}

TEST(Intake, AdvisesNoTurnInAWorldOfOne) {
  Intake intake(true);
  for (const bool small : {false, true}) {
    for (const Nanoseconds now : {Nanoseconds{0}, Intake::kStale, Intake::kHold, 3 * Intake::kHold}) {
      EXPECT_FALSE(intake.submitted(now, small).turn);
      EXPECT_GT(intake.submitted(now, small).rest, 0);
    }
  }
}

TEST(Intake, LetsNothingWaitThatNobodyComesBackFor) {
  Intake intake;
  EXPECT_TRUE(intake.submitted(0, true, false).turn);
  intake.taken(0);
  EXPECT_EQ(intake.submitted(Intake::kStale - 1, true, false).rest, 0);
  EXPECT_TRUE(intake.submitted(Intake::kStale, true, false).turn);
  Intake alone(true);
  EXPECT_FALSE(alone.submitted(0, true, false).turn);
  EXPECT_EQ(alone.submitted(0, true, false).rest, 0);
}

TEST(Intake, WhatIsHeldGoesWithTheGradientThatFollows) {
  Intake intake;
  intake.taken(0);
  EXPECT_FALSE(intake.submitted(Intake::kStale, true).turn);
  EXPECT_TRUE(intake.submitted(Intake::kStale, false).turn);
}

}  // namespace
}  // namespace casync
