// When a run that has begun is reported and given up, with time passed in.
#include "engine/standstill.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

using Verdict = Standstill::Verdict;
constexpr Nanoseconds kSecond = 1'000'000'000;

class StandstillTest : public testing::Test {
 protected:
  StandstillTest() { watch.begin(3, 100 * kSecond); }
  Verdict at(Nanoseconds seconds, Nanoseconds moved) {
    return watch.check(3, (100 + moved) * kSecond, (100 + seconds) * kSecond);
  }
  Standstill watch{{.warning = 60 * kSecond, .timeout = 600 * kSecond}};
};

TEST_F(StandstillTest, IsReportedOnceAndGivenUpLater) {
  EXPECT_EQ(at(14, 0), Verdict::moves);
  EXPECT_EQ(at(15, 0), Verdict::watched);
  EXPECT_EQ(at(60, 0), Verdict::report);
  EXPECT_EQ(at(61, 0), Verdict::watched);
  EXPECT_EQ(at(599, 0), Verdict::watched);
  EXPECT_EQ(at(600, 0), Verdict::give_up);
}

TEST_F(StandstillTest, WhatMovesHereGoesOn) {
  EXPECT_EQ(at(60, 0), Verdict::report);
  EXPECT_EQ(at(599, 590), Verdict::moves);
  EXPECT_EQ(at(651, 590), Verdict::report);  // it stands again
  EXPECT_EQ(at(1189, 590), Verdict::watched);
  EXPECT_EQ(at(1190, 590), Verdict::give_up);
}

TEST_F(StandstillTest, WhatMovesOnAnotherRankGoesOn) {
  watch.heard(3, (100 + 590) * kSecond);
  EXPECT_EQ(at(600, 0), Verdict::moves);
  EXPECT_EQ(at(1190, 0), Verdict::give_up);
}

TEST_F(StandstillTest, TellsTheOthersOfWhatMovesHereAlone) {
  const auto tells = [&](Nanoseconds seconds, Nanoseconds moved) {
    return watch.is_to_tell(3, (100 + moved) * kSecond, (100 + seconds) * kSecond);
  };
  EXPECT_FALSE(tells(10, 9));
  EXPECT_TRUE(tells(16, 9));
  EXPECT_FALSE(tells(17, 17));
  EXPECT_FALSE(tells(40, 9));
  EXPECT_TRUE(tells(41, 40));
  watch.heard(3, (100 + 80) * kSecond);
  EXPECT_FALSE(tells(90, 40));  // or two ranks would keep each other's run alive
}

}  // namespace
}  // namespace casync
