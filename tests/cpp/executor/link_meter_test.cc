// The link's speed is that of all bodies together, whatever the number of them.
#include "executor/measure/link_meter.hpp"

#include <gtest/gtest.h>

#include "executor/measure/copy_meter.hpp"
#include "executor/measure/pings.hpp"
#include "executor/measure/step_clock.hpp"
#include "executor/measure/step_meter.hpp"

namespace casync {
namespace {

constexpr std::size_t kBody = 256 << 10;

TEST(LinkMeter, BodiesThatShareTheLinkCountTogether) {
  LinkMeter meter;
  meter.begin(100);
  meter.begin(150);
  EXPECT_FALSE(meter.end(kBody, 900));
  const auto period = meter.end(kBody, 1100);
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->bytes, 2 * kBody);
  EXPECT_EQ(period->time, 1000);
}

TEST(LinkMeter, IdleTimeIsNotCounted) {
  LinkMeter meter;
  meter.begin(0);
  EXPECT_EQ(meter.end(kBody, 500)->time, 500);
  meter.begin(1'000'000);
  EXPECT_EQ(meter.end(kBody, 1'000'700)->time, 700);
}

TEST(LinkMeter, ALongPeriodIsCutAndAShortOneForgotten) {
  LinkMeter meter;
  meter.begin(0);
  meter.begin(0);
  EXPECT_EQ(meter.end(LinkMeter::kEnough, 1000)->time, 1000);
  EXPECT_EQ(meter.end(kBody, 1300)->time, 300);
  meter.begin(2000);
  EXPECT_FALSE(meter.end(LinkMeter::kLeast - 1, 2100));
}

TEST(CopyMeter, TimeOutsideTheTransportIsNotCounted) {
  CopyMeter meter;
  meter.enter(0);
  meter.begin(100);  // accepted within a call
  meter.leave(150);  // then the thread sleeps, or computes
  meter.enter(1'000'000);
  const auto period = meter.end(kBody, 1'000'300);
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->bytes, kBody);
  EXPECT_EQ(period->time, 50 + 300);
}

TEST(CopyMeter, TimeWithoutABodyIsNotCounted) {
  CopyMeter meter;
  meter.enter(0);
  meter.begin(500);
  EXPECT_EQ(meter.end(kBody, 700)->time, 200);
  meter.leave(5000);
  meter.enter(6000);
  meter.begin(6100);
  EXPECT_EQ(meter.end(kBody, 6250)->time, 150);
}

TEST(CopyMeter, BodiesAtATimeAndNestedCallsCountOnce) {
  CopyMeter meter;
  meter.enter(0);
  meter.begin(0);
  meter.enter(100);  // the next body is accepted while the first one is reported
  meter.begin(100);
  meter.leave(200);
  EXPECT_FALSE(meter.end(kBody, 300));
  EXPECT_EQ(meter.end(kBody, 1000)->time, 1000);
}

TEST(CopyMeter, ALongPeriodIsCutAndAShortOneForgotten) {
  CopyMeter meter;
  meter.enter(0);
  meter.begin(0);
  meter.begin(0);
  EXPECT_EQ(meter.end(LinkMeter::kEnough, 1000)->time, 1000);
  EXPECT_EQ(meter.end(kBody, 1300)->time, 300);
  meter.begin(2000);
  EXPECT_FALSE(meter.end(LinkMeter::kLeast - 1, 2100));
}

TEST(StepClock, AStepBeginsWithItsFirstGradient) {
  StepClock clock;
  EXPECT_EQ(clock.submitted(1, 1000), 0);
  EXPECT_EQ(clock.submitted(1, 1400), 400);
  EXPECT_FALSE(clock.begins(1));
  EXPECT_TRUE(clock.begins(2));
  EXPECT_EQ(clock.submitted(2, 5000), 0);
  EXPECT_EQ(clock.submitted(2, 5300), 300);
  EXPECT_EQ(clock.submitted(2, 4990), 0) << "two threads submit";
  EXPECT_FALSE(clock.submitted(1, 6000)) << "it is of the step before";
}

TEST(Pings, OneRankAfterTheOtherIsAskedAndEachAnswerIsTimed) {
  Pings pings(1, 3);
  EXPECT_EQ(pings.ask(100), Rank{2});
  EXPECT_FALSE(pings.ask(110)) << "the answer is to come first";
  EXPECT_FALSE(pings.answered(0, 120)) << "it was not asked";
  EXPECT_EQ(pings.answered(2, 150), 50);
  EXPECT_FALSE(pings.answered(2, 160)) << "it answers a heartbeat";
  EXPECT_EQ(pings.ask(200), Rank{0});
  EXPECT_EQ(pings.answered(0, 230), 30);
  EXPECT_EQ(pings.ask(300), Rank{2});
}

TEST(Pings, BecomeRareAndNeedTwoRanks) {
  EXPECT_FALSE(Pings(0, 1).ask(0));
  Pings pings(0, 2);
  for (std::size_t i = 0; i < Pings::kFirst; ++i) {
    ASSERT_TRUE(pings.ask(0));
    pings.answered(1, 1);
  }
  EXPECT_FALSE(pings.ask(Pings::kInterval - 1));
  EXPECT_TRUE(pings.ask(Pings::kInterval));
}

TEST(StepMeter, AStepIsAsLongAsOneOfItsGradientsIsUnderWay) {
  StepMeter meter;
  meter.begun(100);
  meter.begun(150);
  meter.ended(0.5, 200);
  meter.ended(0.25, 300);
  meter.begun(1000);
  meter.ended(1, 1100);
  const auto step = meter.next(1500);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->predicted_s, 1.75);
  EXPECT_EQ(step->busy, 200 + 100);
  EXPECT_EQ(step->rest, 400);
  EXPECT_EQ(meter.next(1600)->busy, 0);
}

TEST(StepMeter, WhatIsUnderWayCountsInTheNextStep) {
  StepMeter meter;
  meter.begun(0);
  EXPECT_FALSE(meter.next(50));
  meter.ended(1, 100);
  meter.begun(200);
  meter.failed(250);
  EXPECT_EQ(meter.next(300)->busy, 150);
}

TEST(StepMeter, WhatWasSubmittedBeforeTheStepWasOverLeavesNoRest) {
  StepMeter meter;
  meter.begun(0);
  meter.ended(1, 100);
  EXPECT_EQ(meter.next(90)->rest, 0) << "it was taken up later";
}

}  // namespace
}  // namespace casync
