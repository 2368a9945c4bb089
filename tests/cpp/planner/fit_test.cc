#include <gtest/gtest.h>

#include <random>

#include "casync/planner.hpp"

namespace casync {
namespace {

TEST(FitLine, RecoversAnExactLine) {
  const std::vector<Sample> samples{{0, 5e-6}, {1000, 6e-6}, {4000, 9e-6}};
  const Line line = fit_line(samples);
  EXPECT_NEAR(line.fixed_s, 5e-6, 1e-15);
  EXPECT_NEAR(line.s_per_byte, 1e-9, 1e-18);
}

TEST(FitLine, RecoversPlantedParametersUnderTwentyPercentOutliers) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  for (int round = 0; round < 50; ++round) {
    const double fixed = 1e-6 * static_cast<double>(20 + random() % 500);
    const double slope = 1e-11 * static_cast<double>(1 + random() % 1000);
    std::vector<Sample> samples;
    for (int i = 0; i < 100; ++i) {
      const double bytes = static_cast<double>(1 << (random() % 10)) * 16384;
      double seconds = (fixed + slope * bytes) * noise(random);
      if (i % 5 == 0) seconds *= static_cast<double>(5 + random() % 50);  // a stalled measurement is always late
      samples.push_back({bytes, seconds});
    }
    const Line line = fit_line(samples);
    EXPECT_NEAR(line.s_per_byte / slope, 1, 0.05);
    EXPECT_NEAR((line.fixed_s + line.s_per_byte * 1e6) / (fixed + slope * 1e6), 1, 0.05);
  }
}

TEST(FitLine, IsNeverNegative) {
  const std::vector<Sample> falling{{0, 9e-6}, {1000, 6e-6}, {4000, 1e-6}};
  EXPECT_EQ(fit_line(falling).s_per_byte, 0);
  const std::vector<Sample> steep{{1000, 1e-9}, {2000, 5e-6}, {3000, 10e-6}};
  EXPECT_EQ(fit_line(steep).fixed_s, 0);
}

TEST(FitLine, OneSizeGivesASlopeThroughTheOrigin) {
  const std::vector<Sample> samples{{1000, 1e-6}, {1000, 2e-6}, {1000, 90e-6}};
  const Line line = fit_line(samples);
  EXPECT_EQ(line.fixed_s, 0);
  EXPECT_DOUBLE_EQ(line.s_per_byte, 2e-9);
}

TEST(FitLine, NothingGivesNothing) {
  EXPECT_EQ(fit_line({}).s_per_byte, 0);
  const std::vector<Sample> empty{{0, 1e-6}};
  EXPECT_EQ(fit_line(empty).s_per_byte, 0);
}

TEST(CostTable, MeasuredBeatsFamilyBeatsCautious) {
  CostTable costs;
  costs.codecs["terngrad(bits=4)"] = {1, 2, 3, 4};
  EXPECT_EQ(costs.of("terngrad(bits=4)").encode_fixed_s, 1);
  EXPECT_GT(costs.of("terngrad(bits=2)").encode_s_per_byte, 0);
  EXPECT_LT(costs.of("terngrad(bits=2)").encode_s_per_byte, costs.of("unheard_of").encode_s_per_byte);
  EXPECT_EQ(costs.of("none").encode_s_per_byte, 0);
}

}  // namespace
}  // namespace casync
