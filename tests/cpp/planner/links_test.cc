// From samples of a link to its rate, its latency and its time per message, and from the ranks' links to the job's.
#include "planner/cost/links.hpp"

#include <gtest/gtest.h>

#include <random>

namespace casync {
namespace {

constexpr double kKibi = 1 << 10;
constexpr double kMebi = 1 << 20;

TEST(Links, NothingIsKnownOfALinkThatWasNotUsed) { EXPECT_EQ(LinkSamples().link(), MeasuredLink()); }

TEST(Links, OfBodiesTheLargestCount) {
  LinkSamples samples;
  for (int i = 0; i < 20; ++i) samples.add_body({64 * kKibi, 64 * kKibi * 80e-9});  // latency, mostly
  for (int i = 0; i < 5; ++i) samples.add_body({kMebi, kMebi * 8e-9});
  for (int i = 0; i < 3; ++i) samples.add_body({1.5 * kMebi, 1.0});  // the receiver slept
  EXPECT_DOUBLE_EQ(samples.link().seconds_per_byte.value(), 8e-9);
}

TEST(Links, ALatencyIsHalfARoundTripAndThoseThatWaitedBehindLargeMessagesDoNotCount) {
  LinkSamples samples;
  for (const double seconds : {100e-6, 9e-3, 110e-6, 90e-6, 8e-3, 12e-3, 105e-6, 40e-3})
    samples.add_round_trip(seconds);
  EXPECT_DOUBLE_EQ(samples.link().latency_s.value(), 52.5e-6);
}

/// Each message takes 6 us and a share for its checksum, and every tenth was interrupted.
TEST(Links, ATimePerMessageIsWhatIsLeftOfItsBytes) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(-0.2e-6, 0.2e-6);
  LinkSamples samples;
  for (int i = 0; i < 60; ++i) {
    const double bytes = (16 << (i % 4)) * kKibi;
    samples.add_message({bytes, 6e-6 + bytes * 0.1e-9 + noise(random) + (i % 10 == 0 ? 2e-3 : 0)});
  }
  EXPECT_NEAR(samples.link().message_s.value(), 6e-6, 0.5e-6);
}

TEST(Links, MessagesOfOneLengthDoNotTellWhatOneTakesWithoutItsBytes) {
  LinkSamples samples;
  for (int i = 0; i < 60; ++i) samples.add_message({256 * kKibi, 30e-6});
  EXPECT_FALSE(samples.link().message_s.has_value());
}

TEST(Links, WhatIsOldIsForgotten) {
  LinkSamples samples;
  for (std::size_t i = 0; i < LinkSamples::kMost; ++i) samples.add_body({kMebi, kMebi * 8e-9});
  for (std::size_t i = 0; i < LinkSamples::kMost; ++i) samples.add_body({kMebi, kMebi * 2e-9});
  EXPECT_DOUBLE_EQ(samples.link().seconds_per_byte.value(), 2e-9);
}

TEST(Links, AJobHasTheRateOfItsSlowestRankAndTheLatencyOfMost) {
  const MeasuredLink job = reduce({{50e-6, 1e-9, {}}, {60e-6, {}, 4e-6}, {900e-6, 3e-9, 5e-6}});
  EXPECT_EQ(job, (MeasuredLink{60e-6, 3e-9, 5e-6}));
  EXPECT_EQ(reduce({{}, {}}), MeasuredLink());
}

TEST(Links, WhereRanksWaitForProcessorsTheRateIsTheMedian) {
  const std::vector<MeasuredLink> ranks{{{}, 1e-9, {}}, {{}, 9e-9, {}}, {{}, 2e-9, {}}};
  EXPECT_EQ(reduce(ranks).seconds_per_byte, 9e-9);
  EXPECT_EQ(reduce(ranks, true).seconds_per_byte, 2e-9);
}

TEST(Links, WhatWasNotMeasuredIsAsItWasGuessed) {
  const LinkCost cost = measured_over({{}, 8e-9, {}}, {120e-6, 0.8e-9, 5e-6});
  EXPECT_EQ(cost.latency_s, 120e-6);
  EXPECT_EQ(cost.seconds_per_byte, 8e-9);
  EXPECT_EQ(cost.message_s, 5e-6);
}

}  // namespace
}  // namespace casync
