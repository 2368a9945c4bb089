// From times of calls to what a codec costs: real calls before trials, each size for itself, and lately.
#include "planner/cost/codec_times.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

using Call = CodecTimes::Call;

void add(CodecTimes& times, double bytes, double factor = 1, Basis basis = Basis::gradient) {
  times.add("onebit", Call::encode, {bytes, factor * (3e-6 + bytes * 0.2e-9)}, basis);
  times.add("onebit", Call::decode, {bytes, factor * (1e-6 + bytes * 0.1e-9)}, basis);
}

TEST(CodecTimes, FitsTheCallsOfACodecWithALine) {
  CodecTimes times;
  EXPECT_FALSE(times.has("onebit"));
  EXPECT_TRUE(times.costs().empty());
  for (const double bytes : {1e5, 1e6, 2e6}) add(times, bytes);
  ASSERT_TRUE(times.has("onebit"));
  const CodecCost cost = times.costs().at("onebit");
  EXPECT_NEAR(cost.encode_fixed_s, 3e-6, 1e-9);
  EXPECT_NEAR(cost.encode_s_per_byte, 0.2e-9, 1e-12);
  EXPECT_NEAR(cost.decode_fixed_s, 1e-6, 1e-9);
  EXPECT_NEAR(cost.decode_s_per_byte, 0.1e-9, 1e-12);
}

TEST(CodecTimes, TakesBothCalls) {
  CodecTimes times;
  times.add("onebit", Call::encode, {1e6, 1e-3}, Basis::gradient);
  EXPECT_FALSE(times.has("onebit"));
  EXPECT_TRUE(times.costs().empty());
}

/// The program computes on the same cores, so its own calls take three times as long as in a trial.
TEST(CodecTimes, CallsForGradientsCountMoreThanTrials) {
  CodecTimes times;
  for (const double bytes : {1e5, 1e6}) add(times, bytes, 1, Basis::scratch);
  EXPECT_NEAR(times.costs().at("onebit").encode_s_per_byte, 0.2e-9, 1e-12);
  for (const double bytes : {1e5, 1e6}) add(times, bytes, 2, Basis::copy);
  EXPECT_NEAR(times.costs().at("onebit").encode_s_per_byte, 0.4e-9, 1e-12);
  for (const double bytes : {1e5, 1e6}) add(times, bytes, 3);
  for (int i = 0; i < 50; ++i) add(times, 1e6, 1, Basis::scratch);
  EXPECT_NEAR(times.costs().at("onebit").encode_s_per_byte, 0.6e-9, 1e-12);
  EXPECT_NEAR(times.costs().at("onebit").decode_fixed_s, 3e-6, 1e-9);
}

TEST(CodecTimes, ManyCallsOfOneSizeLeaveThoseOfOthers) {
  CodecTimes times;
  add(times, 1e6);
  for (int i = 0; i < 1000; ++i) add(times, 1e4);
  EXPECT_NEAR(times.costs().at("onebit").encode_s_per_byte, 0.2e-9, 1e-12);
}

TEST(CodecTimes, WhereLongCallsAreNoSlowerThanShortOnesAByteHasItsMedianCost) {
  CodecTimes times;
  for (const auto& [bytes, seconds] : {Sample{1e5, 90e-6}, Sample{1e5, 100e-6}, Sample{1.1e5, 80e-6}}) {
    times.add("onebit", Call::encode, {bytes, seconds}, Basis::gradient);
    times.add("onebit", Call::decode, {bytes, seconds}, Basis::gradient);
  }
  const CodecCost cost = times.costs().at("onebit");
  EXPECT_EQ(cost.encode_fixed_s, 0);
  EXPECT_DOUBLE_EQ(cost.encode_s_per_byte, 90e-6 / 1e5);
}

TEST(CodecTimes, WhatIsOldIsForgotten) {
  CodecTimes times;
  for (const double factor : {1.0, 5.0}) {
    for (std::size_t i = 0; i < CodecTimes::kRecent; ++i) {
      for (const double bytes : {1e5, 1e6}) add(times, bytes, factor);
    }
  }
  EXPECT_NEAR(times.costs().at("onebit").encode_s_per_byte, 1e-9, 1e-12);
}

}  // namespace
}  // namespace casync
