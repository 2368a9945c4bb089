// What F(S) predicts (planner/search/step_model.hpp), beside the virtual world, in which the real engine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "casync/error.hpp"
#include "executor/virtual/simulate.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/model_plan.hpp"
#include "planner/search/request.hpp"
#include "planner/search/search_space.hpp"
#include "routes/phase_list.hpp"

namespace casync {
namespace {

constexpr std::size_t kSteps = 600;

/// Seconds of a step of plans that simulate() makes, by F(S).
double predicted_s(const SimulationRequest& request) {
  CostTable costs = request.costs;
  costs.inter = {static_cast<double>(request.between.latency) * 1e-9, 1 / request.between.bytes_per_second, 5e-6};
  costs.intra = {static_cast<double>(request.within.latency) * 1e-9, 1 / request.within.bytes_per_second, 5e-6};
  const World world(request.host_of);
  OwnerLoad load;
  std::vector<SettledGradient> settled;
  double all = 0;
  for (const Shape& shape : request.gradients) all += static_cast<double>(shape.numel());
  double before = all;
  for (const Shape& shape : request.gradients) {
    Signature signature;
    signature.shape = shape;
    signature.compression = request.compression;
    signature.topology = request.topology;
    const std::string name = detail::concat("gradient", settled.size());
    const Decision decision = plan_gradient({name, signature, world, costs, request.planner, load, Codec::kLateStep});
    load = decision.load;
    costs.gradients[name] = {static_cast<double>(shape.numel()) * 4, {}, request.backward_s * before / all};
    before -= static_cast<double>(shape.numel());
    settled.push_back({name, signature, decision.plan});
  }
  const OwnerLoad nothing;
  const std::vector<OpenGradient> none;
  return SearchSpace({world, costs, request.planner, nothing, none, settled}).predicted({}).step_s;
}

TEST(Predictions, OfRandomListsOfPhasesAreThoseOfTheVirtualWorld) {
  std::vector<PhaseList> lists;
  for (const PhaseList& list : every_phase_list()) {
    if (!why_not_executed(list)) lists.push_back(list);
  }
  const std::vector<std::vector<std::uint32_t>> worlds{
      {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 1, 1, 2, 2, 3, 3}};
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  std::vector<double> errors;
  for (std::size_t turn = 0; errors.size() < kSteps && turn < 10 * kSteps; ++turn) {
    SimulationRequest request;
    request.topology = text_of(lists[below(lists.size())]);
    request.compression = detail::concat("always(", std::vector{"fp16", "onebit", "terngrad(bits=8)"}[below(3)], ")");
    request.host_of = worlds[below(worlds.size())];
    request.between = {std::vector{1.25e8, 3e8, 1.25e9}[below(3)], 50'000};
    for (std::size_t g = 0; g < 1 + below(6); ++g)
      request.gradients.push_back(
          {static_cast<std::int64_t>(std::exp2(14 + 8.0 * static_cast<double>(below(1000)) / 1000)), 1});
    request.backward_s = 0.02 * static_cast<double>(below(5));
    double predicted = 0;
    double simulated = 0;
    try {
      predicted = predicted_s(request);
      simulated = simulate(request).step_s;
    } catch (const InvalidArgument&) {
      continue;  // the list does not carry this codec
    }
    errors.push_back(predicted / simulated - 1);
  }
  ASSERT_EQ(errors.size(), kSteps);
  for (double& error : errors) error = std::abs(error);
  std::ranges::sort(errors);
  EXPECT_LE(errors[kSteps / 2], 0.02) << "the median";
  EXPECT_LE(errors[kSteps * 95 / 100], 0.17) << "19 of 20; the worst is off by " << errors.back();
}

}  // namespace
}  // namespace casync
