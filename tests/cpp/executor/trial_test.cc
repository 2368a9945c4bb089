// What a trial on the copy of a gradient finds out, what jobs are timed as, and what a run adds up.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "executor/measure/run_meter.hpp"
#include "executor/run/codec_trial.hpp"
#include "executor/run/compute.hpp"

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
  CodecTrial trial(kTopk, GradientCopy("w", DType::float32, kNumel, values.data()));
  trial.run();
  ASSERT_TRUE(trial.size().has_value());
  EXPECT_EQ(trial.size()->tensor, "w");
  EXPECT_EQ(trial.size()->codec, kTopk);
  EXPECT_EQ(trial.size()->tensor_bytes, kNumel * 4.0);
  EXPECT_TRUE(trial.size()->of_trial);
  EXPECT_NEAR(trial.size()->payload_bytes / trial.size()->raw_bytes, 0.02, 0.001) << "8 bytes for every 400";
  EXPECT_FALSE(trial.results().empty()) << "it was timed as well";
}

/// The copy has no shape of its own, and not every number of elements is that of a matrix.
TEST(TrialOnAGradient, AnyNumberOfElementsMakesAMatrix) {
  for (const std::int64_t numel : {2, 1000, 30522}) {
    const std::vector<float> values(static_cast<std::size_t>(numel), 1.0F);
    CodecTrial trial("powersgd(rank=1)", GradientCopy("w", DType::float32, numel, values.data()));
    trial.run();
    ASSERT_TRUE(trial.size()) << numel;
    EXPECT_LE(trial.size()->raw_bytes, 5.0 * static_cast<double>(numel) * sizeof(float));
  }
}

TEST(TrialOnAGradient, OnScratchDataNoPayloadIsFound) {
  CodecTrial trial(kTopk);
  trial.run();
  EXPECT_FALSE(trial.size().has_value());
  EXPECT_FALSE(trial.results().empty());
}

std::unique_ptr<Job> encode_of(const Codec& codec, const std::vector<float>& values, std::vector<std::byte>& payload) {
  auto job = std::make_unique<Job>();
  job->codec = &codec;
  job->weight = values.size() * sizeof(float);
  job->sources = {{values.data(), job->weight, true}};
  const auto numel = static_cast<std::int64_t>(values.size());
  job->segment.shape = {numel, 1};
  job->segment.range = {0, numel};
  job->segment.sources = job->sources;
  payload.resize(codec.bound(job->segment.shape, DType::float32, job->segment.range, 0));
  job->segment.payload = payload;
  return job;
}

TEST(RunAll, TheLastOfNeighboursSaysWhatItsTimeIsOf) {
  const auto fp16 = make_codec("fp16");
  const auto bf16 = make_codec("bf16");
  const std::vector<float> values(1000, 1.0F);
  std::vector<std::vector<std::byte>> payloads(3);
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(encode_of(*fp16, values, payloads[0]));
  jobs.push_back(encode_of(*fp16, values, payloads[1]));
  jobs.push_back(encode_of(*bf16, values, payloads[2]));
  std::vector<std::string> errors;
  run_all(jobs, errors);
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_EQ(jobs[0]->timed_jobs, 0U);
  EXPECT_EQ(jobs[1]->timed_jobs, 2U);
  EXPECT_EQ(jobs[1]->timed_weight, 8000U);
  EXPECT_GT(jobs[1]->time, 0);
  EXPECT_EQ(jobs[2]->timed_jobs, 1U);
  EXPECT_EQ(jobs[2]->timed_weight, 4000U);
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
