// What a trial on the copy of a gradient finds out, and what a run adds up.
#include "executor/trial.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "executor/run_meter.hpp"

namespace casync {
namespace {

constexpr const char* kTopk = "test_topk(ratio=0.5)";

TEST(GradientCopy, HasPiecesOfAllPartsOfALargeGradient) {
  constexpr std::int64_t kNumel = 1'000'000;
  std::vector<float> values(kNumel);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const GradientCopy copy("w", DType::float32, kNumel, values.data());
  ASSERT_EQ(copy.elements.size(), GradientCopy::kPieces * GradientCopy::kPieceElements * sizeof(float));
  const auto* const copied = reinterpret_cast<const float*>(copy.elements.data());
  EXPECT_EQ(copied[GradientCopy::kPieceElements - 1], GradientCopy::kPieceElements - 1);
  EXPECT_EQ(copied[GradientCopy::kPieceElements], 250'000);
  EXPECT_EQ(copied[3 * GradientCopy::kPieceElements], 750'000);
}

TEST(GradientCopy, OfASmallGradientIsAllOfIt) {
  const std::vector<std::uint16_t> values(100, 0x3c00);
  EXPECT_EQ(GradientCopy("w", DType::float16, 100, values.data()).elements.size(), 200U);
}

/// test_topk leaves out zeros.
TEST(TrialOnAGradient, FindsHowLongThePayloadsAre) {
  constexpr std::int64_t kNumel = 400'000;
  std::vector<float> values(kNumel, 0.0F);
  for (std::size_t i = 0; i < values.size(); i += 100) values[i] = 1.0F;
  Trial trial(kTopk, GradientCopy("w", DType::float32, kNumel, values.data()));
  trial.run();
  ASSERT_TRUE(trial.size().has_value());
  EXPECT_EQ(trial.size()->tensor, "w");
  EXPECT_EQ(trial.size()->codec, kTopk);
  EXPECT_EQ(trial.size()->tensor_bytes, kNumel * 4.0);
  EXPECT_TRUE(trial.size()->of_trial);
  EXPECT_NEAR(trial.size()->payload_bytes / trial.size()->raw_bytes, 0.02, 0.001) << "8 bytes for every 400";
  EXPECT_FALSE(trial.results().empty()) << "it was timed as well";
}

TEST(TrialOnAGradient, OnScratchDataNoPayloadIsFound) {
  Trial trial(kTopk);
  trial.run();
  EXPECT_FALSE(trial.size().has_value());
  EXPECT_FALSE(trial.results().empty());
}

TEST(RunMeter, AddsUpPartitionsAndRoundsOfEachRun) {
  RunMeter meter;
  meter.begun(3);
  meter.encoded(3, 1000, 10);
  meter.encoded(3, 500, 5);
  meter.encoded(3, 0, 1);
  EXPECT_EQ(meter.of(3).raw_bytes, 1500U);
  EXPECT_EQ(meter.of(3).payload_bytes, 16U);
  meter.begun(3);
  EXPECT_EQ(meter.of(3).payload_bytes, 0U) << "the number is used again";
}

}  // namespace
}  // namespace casync
