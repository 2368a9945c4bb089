// The planner's timeline against the virtual executor: F(S) by a formula, and the same step by the engine itself, its
// messages and tasks one by one, over links and processors of the same costs.
#include <gtest/gtest.h>

#include <string_view>

#include "casync/codec.hpp"
#include "executor/virtual/simulate.hpp"
#include "planner/search/step_model.hpp"

namespace casync {
namespace {

using Sizes = std::vector<std::int64_t>;  // elements, in the order of the forward pass

Sizes resnet50() {
  Sizes sizes;
  const auto convolution = [&](std::int64_t out, std::int64_t in, std::int64_t kernel) {
    for (const std::int64_t numel : {out * in * kernel * kernel, out, out}) sizes.push_back(numel);
  };
  convolution(64, 3, 7);
  std::int64_t in = 64;
  for (const auto& [width, blocks] : {std::pair{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
  }
  sizes.insert(sizes.end(), {1000 * 2048, 1000});
  return sizes;
}

/// Four layers of BERT-base and a small embedding.
Sizes transformer() {
  constexpr std::int64_t kHidden = 768;
  Sizes sizes{4000 * kHidden};
  for (int layer = 0; layer < 4; ++layer) {
    for (int projection = 0; projection < 4; ++projection) sizes.insert(sizes.end(), {kHidden * kHidden, kHidden});
    sizes.insert(sizes.end(), {4 * kHidden * kHidden, 4 * kHidden, 4 * kHidden * kHidden, kHidden, kHidden, kHidden});
  }
  return sizes;
}

struct Step {
  Sizes sizes;
  std::string codec{};
  std::string topology{};
  std::vector<std::uint32_t> host_of{};
  double gbits = 1;
  double backward_s = 0;
};

SimulationRequest request_of(const Step& step) {
  SimulationRequest request;
  for (const std::int64_t numel : step.sizes) request.gradients.push_back({numel, 1});
  request.host_of = step.host_of;
  request.between = {step.gbits * 1.25e8, 50'000};
  request.compression = step.codec;
  request.topology = step.topology;
  request.backward_s = step.backward_s;
  return request;
}

/// F(S) for the plans that simulate() makes; its network knows no cost of a message besides bytes and latency.
double predicted(const Step& step) {
  const SimulationRequest request = request_of(step);
  const auto link = [](const LinkSpeed& speed, double message_s) {
    return LinkCost{static_cast<double>(speed.latency) * 1e-9, 1 / speed.bytes_per_second, message_s};
  };
  CostTable planned;
  planned.inter = link(request.between, 5e-6);
  planned.intra = link(request.within, 5e-6);
  CostTable costs;
  costs.inter = link(request.between, 0);
  costs.intra = link(request.within, 0);

  const World world(step.host_of);
  OwnerLoad load;
  std::vector<std::shared_ptr<const Codec>> codecs;
  std::vector<StepItem> items;
  double all = 0;
  for (const std::int64_t numel : step.sizes) all += static_cast<double>(numel);
  double before = all;
  for (const Shape& shape : request.gradients) {
    Signature signature;
    signature.shape = shape;
    signature.compression = step.codec;
    signature.topology = step.topology;
    Decision decision = plan_gradient({"gradient", signature, world, planned, request.planner, load});
    load = std::move(decision.load);
    const auto& codec = codecs.emplace_back(make_codec(decision.plan.codec));
    items.push_back({.ready_s = step.backward_s * before / all,
                     .raw = static_cast<double>(shape.numel()) * 4,
                     .payload = static_cast<double>(codec->bound(shape, DType::float32, {0, shape.numel()}, 0)),
                     .topology = decision.plan.topology,
                     .partitions = decision.plan.partitions,
                     .codec = &codec->info(),
                     .cost = costs.of(codec->info().spec)});
    before -= static_cast<double>(shape.numel());
  }
  StepModel timeline(costs, world);
  for (auto item = items.rbegin(); item != items.rend(); ++item) timeline.add(*item);  // the last is ready first
  return timeline.finish();
}

const std::vector<std::vector<std::uint32_t>> kWorlds{{0, 1, 2, 3}, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}};

/// Compares every combination of codec, world and link over `topology`, with gradients that come quickly one after the
/// other, and with gradients spread over a backward pass that hides much of the work.
void compare(Step step, const std::string& topology, double limit) {
  step.topology = topology;
  for (const char* codec : {"none", "fp16", "onebit", "terngrad(bits=2)"}) {
    step.codec = codec;
    for (const auto& host_of : kWorlds) {
      step.host_of = host_of;
      for (const double gbits : {1.0, 10.0}) {
        step.gbits = gbits;
        step.backward_s = 0;
        const double alone = predicted(step);
        for (const double share : {0.1, 0.8}) {
          step.backward_s = share * alone;
          const double f = predicted(step);
          const double simulated = simulate(request_of(step)).step_s;
          EXPECT_NEAR(f / simulated, 1, limit)
              << codec << " over " << topology << ", " << host_of.size() << " ranks on " << host_of.back() + 1
              << " hosts, " << gbits << " Gbit/s, backward " << step.backward_s * 1e3 << " ms: " << f * 1e3
              << " ms predicted, " << simulated * 1e3 << " ms simulated";
        }
      }
    }
  }
}

struct Set {
  const char* name;
  Sizes sizes;
};

class TimelineOfASet : public testing::TestWithParam<Set> {};

TEST_P(TimelineOfASet, IsWithinFivePercentOfTheVirtualExecutor) {
  for (const char* topology : {"auto", "ps", "ring", "two_level"}) {
    // ResNet50's 106 small tensors travel inside heads. The virtual network does not queue heads, and they push
    // the bodies away at both ends at once, so that it charges for them now too little and now too much: up to 6.5 %.
    const bool in_heads = std::string_view(GetParam().name) == "ResNet50" && std::string_view(topology) == "auto";
    compare({.sizes = GetParam().sizes}, topology, in_heads ? 0.08 : 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, TimelineOfASet,
                         testing::Values(Set{"ResNet50", resnet50()}, Set{"Transformer", transformer()},
                                         Set{"TwentyOf4MB", Sizes(20, 1'000'000)},
                                         Set{"HundredWithFewOwners", Sizes(100, 262'144)},
                                         Set{"OneOf64MiB", Sizes(1, 16 << 20)}),
                         [](const auto& set) { return std::string(set.param.name); });

/// Nothing orders the senders of a direct exchange, so that they collide at their receivers: up to 7 % with 8 ranks.
TEST(StepModel, DirectExchangesAreWithinEightPercentOfTheVirtualExecutor) {
  compare({.sizes = Sizes(10, 1'000'000)}, "direct", 0.08);
}

/// One gradient alone, of 4 MiB: with so few messages it matters in which order they meet, which no sum of durations
/// knows. The engine needs up to a third more than predicted in PS, whose first credit opens everybody's way to rank 0.
TEST(StepModel, ALoneSmallGradientIsPricedRoughly) {
  for (const char* topology : {"auto", "ps", "ring", "two_level", "direct"})
    compare({.sizes = {1 << 20}}, topology, 0.3);
}

}  // namespace
}  // namespace casync
