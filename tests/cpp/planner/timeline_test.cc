#include "planner/timeline.hpp"

#include <random>

#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

constexpr double kMiB = 1 << 20;

CostTable plain_costs() {
  CostTable costs;
  costs.inter = {0, 1e-9, 0};
  return costs;
}

TimelineItem uncompressed(double raw, std::uint32_t partitions, double ready = 0) {
  return {.ready_s = ready, .raw = raw, .payload = raw, .partitions = partitions, .identity = true};
}

TEST(Timeline, NothingTakesNothing) {
  Timeline timeline(plain_costs(), separate_hosts(4));
  EXPECT_EQ(timeline.finish(), 0);
  EXPECT_EQ(timeline.add(uncompressed(0, 1, 2.5)), 2.5) << "an empty gradient ends when it is ready";
  Timeline alone(plain_costs(), {0});
  EXPECT_EQ(alone.add(uncompressed(kMiB, 1, 1)), 1);
}

TEST(Timeline, OneGradientTakesItsBytes) {
  Timeline timeline(plain_costs(), separate_hosts(4));
  EXPECT_NEAR(timeline.add(uncompressed(64 * kMiB, 4)), 1.5 * 64 * kMiB * 1e-9, 1e-9)
      << "2(N-1)/N of it in each direction";
}

TEST(Timeline, GradientsOfAnIdleProcessorAddUpAtTheLink) {
  Timeline timeline(plain_costs(), separate_hosts(4));
  for (int i = 0; i < 50; ++i) timeline.add(uncompressed(kMiB, 4));
  EXPECT_NEAR(timeline.finish(), 50 * 1.5 * kMiB * 1e-9, 1e-9);
}

TEST(Timeline, LatencyIsHiddenByOtherGradients) {
  CostTable costs = plain_costs();
  costs.inter.latency_s = 1e-3;
  const double each = 1.5 * kMiB * 1e-9;
  Timeline one(costs, separate_hosts(4));
  EXPECT_NEAR(one.add(uncompressed(kMiB, 4)), each + 2e-3, 1e-9);
  Timeline many(costs, separate_hosts(4));
  for (int i = 0; i < 50; ++i) many.add(uncompressed(kMiB, 4));
  EXPECT_LT(many.finish(), 50 * each + 2.1e-3);
}

TEST(Timeline, ReadyTimesAreKept) {
  Timeline timeline(plain_costs(), separate_hosts(4));
  EXPECT_GE(timeline.add(uncompressed(kMiB, 4, 7)), 7 + 1.5 * kMiB * 1e-9 - 1e-9);
  const double early = timeline.add(uncompressed(kMiB, 4, 0));
  EXPECT_LT(early, 1) << "fills the time before";
  EXPECT_GT(timeline.finish(), 7);
}

TEST(Timeline, CompressionIsBoundByTheSlowerOfLinkAndProcessor) {
  const double raw = 64 * kMiB;
  TimelineItem item{.raw = raw, .payload = raw / 32, .partitions = 16, .codec = {0, 1e-9, 0, 0.5e-9}};
  const double compute = raw * 1e-9 + 1.5 * raw * 0.5e-9;  // one encode, 2(N-1)/N decodes
  Timeline timeline(plain_costs(), separate_hosts(4));
  for (int i = 0; i < 20; ++i) timeline.add(item);
  EXPECT_GE(timeline.finish(), 20 * compute - 1e-9);
  EXPECT_LT(timeline.finish(), 20 * compute * 1.02);
}

TEST(Timeline, MorePartitionsOverlapOneGradient) {
  const double raw = 64 * kMiB;
  const auto finish = [&](std::uint32_t partitions) {
    Timeline timeline(plain_costs(), separate_hosts(4));
    return timeline.add({.raw = raw, .payload = raw / 2, .partitions = partitions, .codec = {0, 0.5e-9, 0, 0.5e-9}});
  };
  EXPECT_LT(finish(16), finish(4));
  EXPECT_LT(finish(4), finish(1));
}

TEST(Timeline, EveryTopologyHasATime) {
  for (const Topology topology : {Topology::direct, Topology::parameter_server, Topology::ring, Topology::two_level}) {
    TimelineItem item{
        .raw = kMiB, .payload = kMiB / 32, .topology = topology, .partitions = 8, .codec = {0, 1e-10, 0, 1e-10}};
    Timeline timeline(CostTable{}, shared_hosts(4, 2));
    EXPECT_GT(timeline.add(item), 0) << name_of(topology);
  }
}

TEST(Timeline, NeverFasterThanAResource) {
  std::mt19937 random(23);
  for (int round = 0; round < 50; ++round) {
    Timeline timeline(plain_costs(), separate_hosts(4));
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
