#include "planner/search/model_plan.hpp"

#include <algorithm>
#include <utility>

#include "planner/search/search_space.hpp"

namespace casync {
namespace {

/// The choices that the descent begins with: the fastest way of each gradient alone, and each codec for all gradients.
class Starts {
 public:
  Starts(SearchSpace& space, ModelPlan& plan) : space_(space) {
    plan.alone_s = add(Choice(space.size(), 0));
    for (const std::string& codec : space.codecs()) {
      Choice uniform(space.size(), 0);
      for (std::size_t g = 0; g < uniform.size(); ++g) uniform[g] = space.gradient(g).with(codec).value_or(0);
      plan.uniform.emplace_back(codec, space.predicted(uniform));
      add(std::move(uniform));
    }
    std::ranges::stable_sort(starts_, [](const auto& a, const auto& b) { return a.second.better_than(b.second, 0); });
  }

  /// The best first.
  std::vector<std::pair<Choice, Score>>& sorted() { return starts_; }

 private:
  double add(Choice choice) {
    const Score of_choice = space_.score(choice);
    starts_.emplace_back(std::move(choice), of_choice);
    return of_choice.seconds;
  }

  SearchSpace& space_;
  std::vector<std::pair<Choice, Score>> starts_;
};

/// Each gradient by the way without a codec that is fastest alone.
Choice uncompressed(const SearchSpace& space) {
  Choice choice;
  for (std::size_t g = 0; g < space.size(); ++g) {
    const std::vector<Candidate>& all = space.gradient(g).candidates;
    std::size_t fastest = space.gradient(g).with("none").value_or(0);
    for (std::size_t c = 0; c < all.size(); ++c) {
      if (all[c].codec->info().identity && all[c].needs.finish < all[fastest].needs.finish) fastest = c;
    }
    choice.push_back(fastest);
  }
  return choice;
}

}  // namespace

int loss_of(const std::string& spec) {
  const CodecInfo info = make_codec(spec)->info();
  return info.identity ? 0 : info.cast ? 1 : 2;
}

ModelPlan plan_model(const ModelRequest& request) {
  SearchSpace space(request);
  ModelPlan plan;
  Starts starts(space, plan);
  auto [best, least] = starts.sorted().front();
  for (auto& [choice, of_choice] : starts.sorted()) {
    descend(space, choice, of_choice);
    if (!of_choice.better_than(least, 0)) continue;
    best = std::move(choice);
    least = of_choice;
  }
  Choice options = uncompressed(space);
  Score of_options = space.score(options);
  const std::size_t limit = space.bookings() + kSearchBookings;
  decide_options(space, options, of_options, limit);
  if (least.better_than(of_options, 0)) {
    options = best;
    of_options = least;
    decide_options(space, options, of_options, limit);
  }
  if (of_options.better_than(least, kWorthwhile)) best = std::move(options);
  plan.descent_s = least.seconds;
  plan.options_s = of_options.seconds;
  plan.bound_s = bound_of(space);
  plan.ways = space.ways(best);
  static_cast<PredictedStep&>(plan) = space.predicted(best);
  plan.bookings = space.bookings();
  return plan;
}

}  // namespace casync
