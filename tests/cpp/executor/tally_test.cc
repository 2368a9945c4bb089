// The counters that are always on: what one rank counts as sent is what the other counts as received, and no more.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "casync/error.hpp"
#include "executor/measure/counters.hpp"
#include "executor/virtual/world.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr std::int64_t kNumel = 100'000;
constexpr std::uint64_t kBytes = kNumel * 4;
constexpr std::uint32_t kMembers = 3;
constexpr std::uint32_t kSteps = 4;

/// Every rank's gradients are the same memory, and its results are elsewhere.
class Ones final : public VirtualProgram {
 public:
  Buffers buffers(Rank, std::uint32_t, std::uint32_t) override { return {input_.data(), output_.data()}; }
  void ended(Rank, std::uint32_t, std::uint32_t, Operation& operation) override {
    EXPECT_EQ(operation.status, expected) << operation.text;
  }
  Status expected = Status::ok;

 private:
  std::vector<float> input_ = std::vector<float>(kNumel, 1.0F);
  std::vector<float> output_ = std::vector<float>(kNumel);
};

VirtualTensor tensor_of(const std::string& codec, const std::string& topology, std::int64_t numel = kNumel) {
  VirtualTensor tensor;
  tensor.name = codec;
  tensor.signature.shape = {numel, 1};
  tensor.signature.compression = codec;
  tensor.plan.codec = codec;
  tensor.plan.topology = topology;
  tensor.plan.partitions = kMembers;
  return tensor;
}

VirtualOptions three_ranks() {
  VirtualOptions options;
  for (std::uint32_t m = 0; m < kMembers; ++m) options.network.host_of.push_back(m);
  return options;
}

/// kSteps steps in which rank 2 submits each tensor `late` after the others.
VirtualScript script_of(std::vector<VirtualTensor> tensors, Nanoseconds late = 0) {
  VirtualScript script;
  std::vector<std::vector<Submission>> step(kMembers);
  for (std::uint32_t m = 0; m < kMembers; ++m) {
    for (std::uint32_t t = 0; t < tensors.size(); ++t) step[m].push_back({t, m == 2 ? late : 0, 0});
  }
  script.steps.assign(kSteps, step);
  script.tensors = std::move(tensors);
  return script;
}

Metrics metrics_of(VirtualWorld& world, int rank) {
  Metrics metrics;
  world.driver(rank).tally().read(metrics);
  return metrics;
}

const CodecMetrics& of(const Metrics& metrics, const std::string& codec) {
  for (const CodecMetrics& one : metrics.codecs) {
    if (one.codec == codec) return one;
  }
  throw InternalError("no codec " + codec);
}

std::uint64_t wire_bytes(const std::vector<Traffic>& traffic) {
  std::uint64_t bytes = 0;
  for (const Traffic& one : traffic) bytes += one.wire_bytes;
  return bytes;
}

TEST(GradientCounters, HasWhatWasPredictedBesideWhatItTook) {
  Ones program;
  VirtualTensor plain = tensor_of("none", "ring");
  plain.plan.predicted_s = 0.002;
  VirtualTensor coded = tensor_of("onebit", "ps");
  coded.plan.predicted_s = 0.0005;
  VirtualWorld world(three_ranks(), script_of({plain, coded}), &program);
  const VirtualOutcome outcome = world.run();
  ASSERT_FALSE(outcome.hung) << outcome.waiting;
  for (int rank = 0; rank < static_cast<int>(kMembers); ++rank) {
    std::vector<GradientMetrics> gradients;
    world.driver(rank).gradients().read(gradients);
    ASSERT_EQ(gradients.size(), 2U);
    const bool plain_first = gradients[0].tensor == "none";
    const GradientMetrics& none = gradients[plain_first ? 0 : 1];
    const GradientMetrics& onebit = gradients[plain_first ? 1 : 0];
    EXPECT_EQ(none.operations, kSteps);
    EXPECT_EQ(none.predicted, kSteps * 2 * kMillisecond);
    EXPECT_EQ(onebit.predicted, kSteps * kMillisecond / 2);
    EXPECT_GT(none.time, onebit.time) << "it has more to send";
    EXPECT_GT(onebit.time, 0);
    EXPECT_EQ(none.plan_time, none.time / kSteps) << "it had one plan";
    EXPECT_EQ(none.payload_bytes, 0U);
    EXPECT_GT(onebit.encoded_bytes, 20 * onebit.payload_bytes);
    EXPECT_GT(onebit.payload_bytes, 0U);
  }
}

TEST(Counters, WhatOneRankSendsAnotherReceives) {
  Ones program;
  VirtualWorld world(three_ranks(),
                     script_of({tensor_of("none", "ring"), tensor_of("fp16", "ps"), tensor_of("onebit", "ps")}),
                     &program);
  const VirtualOutcome outcome = world.run();
  ASSERT_FALSE(outcome.hung) << outcome.waiting;
  std::vector<Metrics> ranks;
  for (std::uint32_t m = 0; m < kMembers; ++m) ranks.push_back(metrics_of(world, static_cast<int>(m)));
  for (const char* codec : {"none", "fp16", "onebit"}) {
    for (std::uint32_t a = 0; a < kMembers; ++a) {
      const CodecMetrics& mine = of(ranks[a], codec);
      EXPECT_EQ(mine.operations, kSteps);
      EXPECT_EQ(mine.tensor_bytes, kSteps * kBytes);
      EXPECT_EQ(mine.sent[a].messages + mine.received[a].messages, 0U);
      for (std::uint32_t b = 0; b < kMembers; ++b) {
        const Traffic& sent = mine.sent[b];
        const Traffic& received = of(ranks[b], codec).received[a];
        EXPECT_EQ(sent.messages, received.messages) << codec << ' ' << a << " to " << b;
        EXPECT_EQ(sent.raw_bytes, received.raw_bytes) << codec << ' ' << a << " to " << b;
        EXPECT_EQ(sent.wire_bytes, received.wire_bytes) << codec << ' ' << a << " to " << b;
      }
    }
  }
  // Ring and parameter server: in all, each element travels N-1 times towards its owner and N-1 times back.
  const auto total = [&](const char* codec) {
    std::uint64_t bytes = 0;
    for (const Metrics& one : ranks) bytes += wire_bytes(of(one, codec).sent);
    return bytes;
  };
  const std::uint64_t uncompressed = kSteps * 2 * (kMembers - 1) * kBytes;
  EXPECT_EQ(total("none"), uncompressed);
  EXPECT_EQ(total("fp16"), uncompressed / 2);
  EXPECT_LT(total("onebit"), uncompressed / 25);
  EXPECT_GT(total("onebit"), uncompressed / 26);
  for (const Metrics& one : ranks) {
    EXPECT_GT(of(one, "onebit").encode.tasks, 0U);
    EXPECT_GT(of(one, "onebit").encode.time, 0);
    EXPECT_GT(of(one, "onebit").merge.time, 0);
    EXPECT_GT(of(one, "onebit").decode.time, 0);
    EXPECT_EQ(of(one, "none").encode.tasks, 0U);
    const QueueLengths& queues = one.queues;
    EXPECT_EQ(queues.operations + queues.partitions + queues.tasks + queues.sends + queues.sends_flowing, 0U);
    EXPECT_EQ(one.pool.used, 0U);
    EXPECT_GT(one.pool.peak, 0U);
    EXPECT_EQ(one.pool.capacity, EngineOptions{}.pool_bytes);
    EXPECT_GE(one.transport.sent_bytes,
              wire_bytes(of(one, "none").sent) + wire_bytes(of(one, "fp16").sent) + wire_bytes(of(one, "onebit").sent));
    EXPECT_EQ(one.failed_operations, 0U);
  }
}

TEST(Counters, SmallTensorsThatGoUnaskedCountToo) {
  Ones program;
  VirtualWorld world(three_ranks(), script_of({tensor_of("none", "direct", 100)}), &program);
  ASSERT_FALSE(world.run().hung);
  for (int rank = 0; rank < 3; ++rank) {
    const Metrics metrics = metrics_of(world, rank);
    EXPECT_EQ(wire_bytes(of(metrics, "none").sent), kSteps * 2 * 400U);
    EXPECT_EQ(wire_bytes(of(metrics, "none").received), kSteps * 2 * 400U);
  }
}

TEST(Counters, RankZeroKnowsWhoIsLate) {
  Ones program;
  VirtualWorld world(three_ranks(), script_of({tensor_of("none", "ring")}, 50 * kMillisecond), &program);
  ASSERT_FALSE(world.run().hung);
  const std::vector<Lateness> lateness = metrics_of(world, 0).lateness;
  ASSERT_EQ(lateness.size(), kMembers);
  for (const Lateness& one : lateness) EXPECT_EQ(one.reports, kSteps);
  EXPECT_EQ(lateness[2].last, kSteps);
  EXPECT_GE(lateness[2].time, kSteps * 49 * kMillisecond);
  EXPECT_LE(lateness[2].time, kSteps * 60 * kMillisecond);
  EXPECT_EQ(lateness[0].last + lateness[1].last, 0U);
  EXPECT_TRUE(metrics_of(world, 1).lateness.empty());
}

TEST(Counters, WhatFailsIsNeitherOutstandingNorCountedAsDone) {
  Ones program;
  program.expected = Status::peer_failure;
  VirtualScript script = script_of({tensor_of("none", "ring")});
  script.steps.resize(1);
  script.faults.push_back({.kind = Fault::Kind::kill, .at = 100'000, .rank = 1, .noticed = 0});
  VirtualWorld world(three_ranks(), script, &program);
  ASSERT_FALSE(world.run().hung);
  for (const int rank : {0, 2}) {
    const Metrics metrics = metrics_of(world, rank);
    EXPECT_EQ(metrics.failed_operations, 1U);
    EXPECT_EQ(metrics.queues.operations, 0U);
    EXPECT_EQ(metrics.queues.tasks, 0U);
    for (const CodecMetrics& codec : metrics.codecs) EXPECT_EQ(codec.operations, 0U);
  }
}

// For ThreadSanitizer, above all.
TEST(Counters, AnotherThreadReadsMeanwhile) {
  Ones program;
  VirtualWorld world(three_ranks(), script_of({tensor_of("none", "ring"), tensor_of("fp16", "ps")}), &program);
  std::atomic<bool> over{false};
  std::thread reader([&] {
    std::uint64_t before = 0;
    while (!over) {
      const Metrics metrics = metrics_of(world, 1);
      std::uint64_t bytes = 0;
      for (const CodecMetrics& codec : metrics.codecs) bytes += wire_bytes(codec.sent);
      EXPECT_GE(bytes, before);
      EXPECT_LE(metrics.queues.operations, 2U);
      before = bytes;
    }
  });
  EXPECT_FALSE(world.run().hung);
  over = true;
  reader.join();
}

TEST(Histogram, BucketsHoldTheirBounds) {
  HistogramCount count;
  for (const Nanoseconds time : {0, 1, 1000, 1001, 2000, 2001}) count.add(time);
  count.add(Histogram::bound(Histogram::kBounds - 1));
  count.add(Histogram::bound(Histogram::kBounds - 1) + 1);
  const Histogram histogram = count.get();
  EXPECT_EQ(histogram.counts[0], 3U);
  EXPECT_EQ(histogram.counts[1], 2U);
  EXPECT_EQ(histogram.counts[2], 1U);
  EXPECT_EQ(histogram.counts[Histogram::kBounds - 1], 1U);
  EXPECT_EQ(histogram.counts[Histogram::kBounds], 1U);
  EXPECT_EQ(histogram.sum, 6003 + 2 * Histogram::bound(Histogram::kBounds - 1) + 1);
}

}  // namespace
}  // namespace casync
