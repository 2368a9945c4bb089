// A residual in 8 bits: what it rounds to, what stays as it is, and that rounding takes no side.
#include "executor/memory/packed_residual.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace casync::test {
namespace {

constexpr std::int64_t kNumel = 10'007;
const std::vector<Range> kWhole{{0, kNumel}};
const std::vector<Range> kParts{{0, 1}, {1, 300}, {300, 300}, {300, 7000}, {7000, kNumel}};

std::vector<float> normal(std::int64_t n = kNumel) {
  std::mt19937 random(7);
  std::normal_distribution<float> distribution(0.0F, 1e-3F);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = distribution(random);
  return values;
}

float largest(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

TEST(PackedResidual, IsWithinALevelOfWhatItHolds) {
  const std::vector<float> values = normal();
  for (const auto& partitions : {kWhole, kParts}) {
    const FloatArray read = PackedResidual(values, partitions, 1).values();
    ASSERT_EQ(read.size(), values.size());
    const float level = largest(values) / 127 * 1.001F;
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_LT(std::abs(read[i] - values[i]), level) << i;
  }
}

TEST(PackedResidual, TakesAQuarterOfTheMemory) {
  EXPECT_LT(PackedResidual(normal(), kWhole, 1).bytes(), sizeof(float) * kNumel * 0.26);
}

TEST(PackedResidual, WhatLiesOnLevelsStaysAsItIs) {
  for (const float scale : {1.0F, 3.7e-30F, 2.9e33F}) {
    std::vector<float> values = normal();
    for (float& value : values) value *= scale;
    const FloatArray once = PackedResidual(values, kParts, 1).values();
    for (std::uint64_t seed = 2; seed < 40; ++seed)
      ASSERT_EQ(PackedResidual(once, kParts, seed).values(), once) << scale << ", seed " << seed;
  }
}

/// Also of values that are far smaller than a level.
TEST(PackedResidual, RoundingTakesNoSide) {
  constexpr int kTimes = 20'000;
  const std::vector<float> values{1.0F, -0.4F, 0.3F / 127, -0.07F / 127, 0.02F / 127, 0.0F, 55.5F / 127};
  const std::vector<Range> whole{{0, std::ssize(values)}};
  std::vector<double> sum(values.size());
  for (std::uint64_t seed = 0; seed < kTimes; ++seed) {
    const FloatArray read =
        PackedResidual(values, whole, seed_of(0x1234567, static_cast<std::uint32_t>(seed), 1)).values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(read[i]);
  }
  for (std::size_t i = 0; i < sum.size();
       ++i)  // four times the standard deviation of a mean of coins, and what is near
    EXPECT_NEAR(sum[i] / kTimes, static_cast<double>(values[i]), (4 * 0.5 / std::sqrt(kTimes) + 0x1.0p-9) / 127) << i;
}

TEST(PackedResidual, OneThatIsCutAnewKeepsItsMass) {
  const std::vector<float> values = normal();
  const FloatArray once = PackedResidual(values, kParts, 1).values();
  const FloatArray again = PackedResidual(once, kWhole, 2).values();
  double off = 0;
  for (std::size_t i = 0; i < once.size(); ++i) off += static_cast<double>(again[i] - once[i]);
  const double level = static_cast<double>(largest(values)) / 127;
  EXPECT_LT(std::abs(off), 4 * level * std::sqrt(static_cast<double>(kNumel)) / 2);
}

TEST(PackedResidual, PartitionsAreWrittenApart) {
  std::vector<float> values = normal();
  PackedResidual packed(values, kParts, 1);
  EXPECT_TRUE(packed.is_of(kParts));
  EXPECT_FALSE(packed.is_of(kWhole));
  const FloatArray before = packed.values();
  const std::vector<float> zeros(static_cast<std::size_t>(packed.size(3)));
  packed.write(3, zeros.data(), 2);
  const FloatArray after = packed.values();
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const bool written = i >= 300 && i < 7000;
    ASSERT_EQ(after[static_cast<std::size_t>(i)], written ? 0.0F : before[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(PackedResidual, TinyOnesAreZerosAndWhatIsNotFiniteStaysSo) {
  std::vector<float> values = normal(600);
  std::fill_n(values.begin(), 256, 1e-38F);
  values[300] = std::numeric_limits<float>::infinity();
  const FloatArray read = PackedResidual(values, std::vector<Range>{{0, 600}}, 1).values();
  EXPECT_EQ(largest(std::span(read).first(256)), 0.0F);
  EXPECT_TRUE(std::isnan(read[300]));
  EXPECT_TRUE(std::all_of(read.begin() + 512, read.end(), [](float value) { return std::isfinite(value); }));
}

}  // namespace
}  // namespace casync::test
