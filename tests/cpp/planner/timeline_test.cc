#include <random>

#include "planner/plan_fixture.hpp"
#include "planner/search/step_model.hpp"

namespace casync {
namespace {

constexpr double kMiB = 1 << 20;

const std::shared_ptr<const Codec> kNone = make_codec("none");
const std::shared_ptr<const Codec> kOnebit = make_codec("onebit");
const World kFour(separate_hosts(4));

CostTable plain_costs() {
  CostTable costs;
  costs.inter = {0, 1e-9, 0};
  return costs;
}

StepItem uncompressed(double raw, std::uint32_t partitions, double ready = 0) {
  return {.ready_s = ready, .raw = raw, .payload = raw, .partitions = partitions, .codec = &kNone->info()};
}

TEST(StepModel, NothingTakesNothing) {
  StepModel timeline(plain_costs(), kFour);
  EXPECT_EQ(timeline.finish(), 0);
  EXPECT_EQ(timeline.add(uncompressed(0, 1, 2.5)), 2.5) << "an empty gradient ends when it is ready";
  const World single(std::vector<std::uint32_t>{0});
  StepModel alone(plain_costs(), single);
  EXPECT_EQ(alone.add(uncompressed(kMiB, 1, 1)), 1);
}

/// What the last of three senders waits for the others at a receiver, for partitions of `bytes`.
double meeting(double bytes) { return 1.5 * bytes * 1e-9; }

TEST(StepModel, OneGradientTakesItsBytes) {
  StepModel timeline(plain_costs(), kFour);
  EXPECT_NEAR(timeline.add(uncompressed(64 * kMiB, 64)), 1.5 * 64 * kMiB * 1e-9 + meeting(kMiB), 1e-9)
      << "2(N-1)/N of it in each direction";
}

TEST(StepModel, GradientsOfAnIdleProcessorAddUpAtTheLink) {
  StepModel timeline(plain_costs(), kFour);
  for (int i = 0; i < 50; ++i) timeline.add(uncompressed(kMiB, 4));
  EXPECT_NEAR(timeline.finish(), 50 * 1.5 * kMiB * 1e-9 + meeting(kMiB / 4), 1e-9);
}

TEST(StepModel, OneOwnerCostsALoneGradientMoreThanASet) {
  StepModel alone(plain_costs(), kFour);
  EXPECT_NEAR(alone.add(uncompressed(kMiB, 1)), 2 * 3 * kMiB * 1e-9, 1e-9)
      << "three contributions through the owner's link, and three results";
  StepModel set(plain_costs(), kFour);
  for (int i = 0; i < 50; ++i) set.add(uncompressed(kMiB, 1));
  EXPECT_NEAR(set.finish(), 50 * 1.5 * kMiB * 1e-9, 10 * kMiB * 1e-9) << "owners take turns";
}

TEST(StepModel, RanksOfAHostDoNotSlowItsLink) {
  StepItem item = uncompressed(64 * kMiB, 64);
  item.topology = "two_level";
  CostTable costs = plain_costs();
  costs.intra = {0, 1e-12, 0};
  const World sixteen(shared_hosts(4, 4));
  StepModel two_level(costs, sixteen);
  EXPECT_NEAR(two_level.add(item), 1.5 * 64 * kMiB * 1e-9 + meeting(kMiB), 64 * kMiB * 1e-11) << "per host";
  item.topology = "ring";
  StepModel ring(costs, sixteen);
  EXPECT_NEAR(ring.add(item), 2.0 * 15 / 16 * 64 * kMiB * 1e-9, 4 * kMiB * 1e-9) << "one rank of a host crosses it";
  item.topology = "ps";
  StepModel flat(costs, sixteen);
  EXPECT_GT(flat.add(item), 3 * 2.0 * 15 / 16 * 64 * kMiB * 1e-9) << "all ranks of a host cross it";
}

/// Copies inside a host take a processor's time, which a rank with a second core has to spare.
TEST(StepModel, WhereARankHasOneCoreItCopiesOrComputes) {
  const World host(shared_hosts(1, 4));
  const auto seconds = [&](double copy_s_per_byte, double codec_s_per_byte, double processors) {
    CostTable costs = plain_costs();
    costs.intra = {0, copy_s_per_byte, 0};
    costs.processors = processors;
    StepModel timeline(costs, host);
    for (int i = 0; i < 50; ++i) {
      StepItem item{.raw = kMiB, .payload = kMiB / 2, .partitions = 4, .codec = &kOnebit->info()};
      item.cost = {0, codec_s_per_byte, 0, codec_s_per_byte};
      timeline.add(item);
    }
    return timeline.finish();
  };
  const double copies_s = seconds(1e-9, 0, 2);
  const double codec_s = seconds(0, 0.5e-9, 2);
  EXPECT_NEAR(seconds(1e-9, 0.5e-9, 2), std::max(copies_s, codec_s), 0.05 * codec_s);
  EXPECT_NEAR(seconds(1e-9, 0.5e-9, 1), copies_s + codec_s, 0.05 * codec_s);
  EXPECT_NEAR(seconds(1e-9, 0.5e-9, 0.5), 2 * (copies_s + codec_s), 0.1 * codec_s) << "two ranks share one";
}

/// With two processors one makes gradients while the other encodes those that there are.
TEST(StepModel, WhereARankHasOneCoreBackwardAndCodecsTakeTurns) {
  constexpr double kBackward = 0.1;
  const auto seconds = [&](double processors, double backward_work = 1) {
    CostTable costs = plain_costs();
    costs.inter = {0, 1e-12, 0};
    costs.processors = processors;
    costs.backward_work = backward_work;
    StepModel timeline(costs, kFour);
    for (int i = 1; i <= 50; ++i) {
      StepItem item{
          .ready_s = kBackward * i / 50, .raw = kMiB, .payload = kMiB / 32, .partitions = 4, .codec = &kOnebit->info()};
      item.cost = {0, 1e-9, 0, 0};
      timeline.add(item);
    }
    return timeline.finish();
  };
  const double codec_s = 50 * kMiB * 1e-9;  // three quarters for the others, and the sum of the fourth
  EXPECT_NEAR(seconds(2), kBackward, 0.1 * kBackward);
  EXPECT_NEAR(seconds(1), kBackward + codec_s, 0.1 * codec_s);
  EXPECT_NEAR(seconds(0.5), 2 * (kBackward + codec_s), 0.1 * codec_s) << "two ranks share one";
  EXPECT_NEAR(seconds(0.5, 0), std::max(kBackward, 2 * codec_s), 0.1 * codec_s) << "a pass that sleeps takes none";
}

/// A ring of four sends a gradient one and a half times, and receives as much.
TEST(StepModel, WhereARankHasOneCoreThatCarriesItsBodiesToo) {
  const double raw = 64 * kMiB;
  const auto seconds = [&](double processors) {
    CostTable costs = plain_costs();
    costs.inter = {0, 1e-12, 0, 1e-9};
    costs.processors = processors;
    StepModel timeline(costs, kFour);
    StepItem item = uncompressed(raw, 64);
    item.topology = "ring";
    timeline.add(item);
    return timeline.finish();
  };
  EXPECT_LT(seconds(2), 1e-3) << "another processor does";
  EXPECT_NEAR(seconds(1), 1.5 * raw * 1e-9, 0.05 * raw * 1e-9);
  EXPECT_NEAR(seconds(0.5), 2 * 1.5 * raw * 1e-9, 0.1 * raw * 1e-9);
}

TEST(StepModel, WhereARankHasOneCoreEveryGradientTakesSomeOfIt) {
  const auto seconds = [&](double processors) {
    CostTable costs = plain_costs();
    costs.inter = {0, 1e-12, 0};
    costs.operation_s = 1e-3;
    costs.processors = processors;
    StepModel timeline(costs, kFour);
    for (int i = 0; i < 100; ++i) timeline.add(uncompressed(1024, 1));
    return timeline.finish();
  };
  EXPECT_LT(seconds(2), 0.01);
  EXPECT_NEAR(seconds(1), 0.1, 0.01);
  EXPECT_NEAR(seconds(0.25), 0.4, 0.04);
}

TEST(StepModel, LatencyIsHiddenByOtherGradients) {
  CostTable costs = plain_costs();
  costs.inter.latency_s = 1e-3;
  const double each = 1.5 * kMiB * 1e-9;
  StepModel one(costs, kFour);
  EXPECT_NEAR(one.add(uncompressed(kMiB, 4)), each + meeting(kMiB / 4) + 7e-3, 1e-9)
      << "ready, start, credit; an announcement and a body each way";
  StepModel many(costs, kFour);
  for (int i = 0; i < 50; ++i) many.add(uncompressed(kMiB, 4));
  EXPECT_LT(many.finish(), 50 * each + meeting(kMiB / 4) + 7.1e-3);
  StepModel small(costs, kFour);
  StepItem item = uncompressed(1024, 1);
  item.topology = "direct";
  EXPECT_LT(small.add(item), 1.1e-3) << "small ones leave at once";
  item.topology = "ps";
  EXPECT_LT(small.add(item), 2.1e-3) << "to an owner, too";
}

TEST(StepModel, ReadyTimesAreKept) {
  StepModel timeline(plain_costs(), kFour);
  EXPECT_GE(timeline.add(uncompressed(kMiB, 4, 7)), 7 + 1.5 * kMiB * 1e-9 - 1e-9);
  const double early = timeline.add(uncompressed(kMiB, 4, 0));
  EXPECT_LT(early, 1) << "fills the time before";
  EXPECT_GT(timeline.finish(), 7);
}

TEST(StepModel, CompressionIsBoundByTheSlowerOfLinkAndProcessor) {
  const double raw = 64 * kMiB;
  StepItem item{
      .raw = raw, .payload = raw / 32, .partitions = 16, .codec = &kOnebit->info(), .cost = {0, 1e-9, 0, 0.5e-9}};
  const double compute = raw * 1e-9 + 1.5 * raw * 0.5e-9;  // one encode, 2(N-1)/N decodes
  StepModel timeline(plain_costs(), kFour);
  for (int i = 0; i < 20; ++i) timeline.add(item);
  EXPECT_GE(timeline.finish(), 20 * compute - 1e-9);
  EXPECT_LT(timeline.finish(), 20 * compute * 1.02);
}

TEST(StepModel, MorePartitionsOverlapOneGradient) {
  const double raw = 64 * kMiB;
  const auto finish = [&](std::uint32_t partitions) {
    StepModel timeline(plain_costs(), kFour);
    return timeline.add({.raw = raw,
                         .payload = raw / 2,
                         .partitions = partitions,
                         .codec = &kOnebit->info(),
                         .cost = {0, 0.5e-9, 0, 0.5e-9}});
  };
  EXPECT_LT(finish(16), finish(4));
  EXPECT_LT(finish(4), finish(1));
}

TEST(StepModel, EveryTopologyHasATime) {
  for (const char* topology : {"direct", "ps", "ring", "two_level"}) {
    StepItem item{.raw = kMiB,
                  .payload = kMiB / 32,
                  .topology = topology,
                  .partitions = 8,
                  .codec = &kOnebit->info(),
                  .cost = {0, 1e-10, 0, 1e-10}};
    const World eight(shared_hosts(4, 2));
    StepModel timeline(CostTable{}, eight);
    EXPECT_GT(timeline.add(item), 0) << topology;
  }
}

TEST(StepModel, NeverFasterThanAResource) {
  std::mt19937 random(23);
  for (int round = 0; round < 50; ++round) {
    StepModel timeline(plain_costs(), kFour);
    double link = 0;
    double last_ready = 0;
    double finish = 0;
    for (int i = 0; i < 60; ++i) {
      const double raw = 1024.0 * static_cast<double>(1 + random() % 4096);
      const double ready = 1e-4 * static_cast<double>(random() % 1000);
      const double end = timeline.add(uncompressed(raw, 4, ready));
      EXPECT_GE(end, ready + 1.5 * raw * 1e-9 - 1e-12);
      link += 1.5 * raw * 1e-9;
      last_ready = std::max(last_ready, ready);
      finish = std::max(finish, end);
    }
    EXPECT_GE(finish, link - 1e-9);
    EXPECT_LE(finish, last_ready + link + 1e-9) << "the link never idles while there is work";
    EXPECT_EQ(finish, timeline.finish());
  }
}

}  // namespace
}  // namespace casync
