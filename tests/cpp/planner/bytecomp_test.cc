// ByteComp's algorithms against all that there could be, on models that are small enough to try it all.
#include <cmath>
#include <random>

#include "planner/plan_fixture.hpp"
#include "planner/search/search_space.hpp"

namespace casync {
namespace {

/// A model on hosts of several ranks each, with what plan_model takes.
struct Model {
  std::vector<std::uint32_t> host_of;
  CostTable costs{};
  std::vector<OpenGradient> open{};
  std::vector<SettledGradient> settled{};
  PlannerOptions options{};
  OwnerLoad load{};

  void add(std::int64_t numel, double ready_s, const std::string& compression, bool on_device = false) {
    const std::string name = "g" + std::to_string(open.size());
    open.push_back({name, gradient_of(numel, compression, "auto")});
    if (on_device) open.back().signature.memory = MemoryKind::device;
    costs.gradients[name] = {static_cast<double>(numel) * 4, {}, ready_s};
  }
};

Model draw(std::mt19937& random, std::size_t gradients) {
  const auto between = [&](double least, double most) {  // evenly on a logarithmic scale
    return least * std::pow(most / least, std::uniform_real_distribution<double>(0, 1)(random));
  };
  Model model;
  model.host_of = shared_hosts(2 + random() % 2, 2);
  model.costs.inter = {between(1e-6, 1e-4), between(0.05e-9, 10e-9), between(1e-6, 1e-5)};
  model.costs.intra = {between(1e-6, 1e-4), between(0.02e-9, 4e-9), between(1e-6, 1e-5)};
  model.costs.codecs["onebit"] = {between(1e-7, 1e-4), between(0.02e-9, 2e-9), between(1e-7, 1e-4),
                                  between(0.02e-9, 2e-9)};
  const bool on_device = random() % 2 == 0;
  if (on_device) {
    model.costs.device_codecs["onebit"] = {between(1e-6, 1e-4), between(0.01e-9, 0.5e-9), between(1e-6, 1e-4),
                                           between(0.01e-9, 0.5e-9)};
  }
  const double step_s = between(1e-3, 0.3);
  for (std::size_t g = 0; g < gradients; ++g) {
    model.add(static_cast<std::int64_t>(between(1 << 14, 1 << 23)),
              step_s * static_cast<double>(g) / static_cast<double>(gradients), "auto(onebit)", on_device);
  }
  return model;
}

/// The least of all choices.
double least_of(SearchSpace& space) {
  Choice choice(space.size(), 0);
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    least = std::min(least, space.score(choice, least).seconds);
    std::size_t g = 0;
    while (g < choice.size() && ++choice[g] == space.gradient(g).candidates.size()) choice[g++] = 0;
    if (g == choice.size()) return least;
  }
}

Choice uncompressed(const SearchSpace& space) {
  Choice choice;
  for (std::size_t g = 0; g < space.size(); ++g) choice.push_back(*space.gradient(g).with("none"));
  return choice;
}

TEST(ByteComp, IsNearTheBestOfAllAndNeverUnderTheBound) {
  std::mt19937 random(3);
  int models = 0, near = 0, exact = 0;
  double worst = 1;
  for (int round = 0; round < 100; ++round) {
    const Model model = draw(random, round == 0 ? 4 : round % 5 == 0 ? 3 : 2);
    const World world(model.host_of);
    const ModelRequest request{world, model.costs, model.options, model.load, model.open, model.settled};
    SearchSpace space(request);
    Choice choice = uncompressed(space);
    Score score = space.score(choice);
    decide_options(space, choice, score, kSearchBookings);
    EXPECT_NEAR(space.predicted(choice).step_s, score.seconds, 1e-12);
    const double least = least_of(space);
    EXPECT_GE(least, bound_of(space) * (1 - 1e-9)) << "model " << round;
    EXPECT_GE(score.seconds, least * (1 - 1e-9)) << "model " << round;
    EXPECT_LE(score.seconds, 1.1 * least) << "model " << round;
    worst = std::max(worst, score.seconds / least);
    ++models;
    near += score.seconds <= 1.01 * least ? 1 : 0;
    exact += score.seconds <= (1 + 1e-9) * least ? 1 : 0;
  }
  EXPECT_GE(near, models * 90 / 100);
  EXPECT_GE(exact, models * 90 / 100) << "within 1 % in " << near << ", the worst takes " << worst << " times the best";
}

/// Lemma 1 says that of gradients of one size those that backward makes first should be computed on the host. Backward
/// makes T0 (1 s), X (9 s) and T1 (1 s). X takes 30 s on the network, uncompressed. T0 and T1 take 5 s each, and a
/// processor needs 12 s for one. With T0 on the host its transfer misses the gap before X.
TEST(ByteComp, LemmaOneDoesNotHoldWhereATransferMissesItsGap) {
  const auto at = [](std::size_t offloaded) {
    // A world whose numbers are those above: two ranks on two hosts, which send all they have to each other.
    const World world(separate_hosts(2));
    CostTable costs;
    costs.inter = {0, 1e-6, 0};
    StepModel timeline(costs, world);
    const auto codec = make_codec("onebit");
    const auto none = make_codec("none");
    const CodecCost device{0.1, 0, 0, 0};
    const CodecCost host{12.0, 0, 0, 0};
    const auto item = [&](double ready_s, bool on_host) {
      return StepItem{.ready_s = ready_s,
                      .raw = 20e6,
                      .payload = 5e6,
                      .topology = "direct",
                      .codec = &codec->info(),
                      .cost = on_host ? host : device,
                      .place = on_host ? Place::offloaded : Place::device,
                      .copies_s = on_host ? 0.2 : 0};
    };
    timeline.add(item(1, offloaded == 0));
    timeline.add({.ready_s = 10,
                  .raw = 30e6,
                  .payload = 30e6,
                  .topology = "direct",
                  .codec = &none->info(),
                  .place = Place::device});
    timeline.add(item(11, offloaded == 1));
    return timeline.finish();
  };
  EXPECT_NEAR(at(0), 50.0, 0.01) << "T0 on the host, as the lemma says";
  EXPECT_NEAR(at(1), 45.2, 0.01) << "T1 on the host";
  EXPECT_NEAR(at(2), 45.1, 0.01) << "neither";
}

}  // namespace
}  // namespace casync
