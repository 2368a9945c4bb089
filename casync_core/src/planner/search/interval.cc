#include "planner/search/interval.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/search/request.hpp"
#include "planner/search/search_space.hpp"

namespace casync {
namespace {

constexpr double kSlack = 0.05;  // of the ratio: what is measured is not exact

/// Seconds that the gradients take if all are ready at once.
double at_once_s(const ModelRequest& request, const CostTable& costs, const std::vector<SettledGradient>& settled) {
  if (settled.empty()) return 0;
  const std::vector<OpenGradient> none;
  const SearchSpace space({request.world, costs, request.options, request.lasting, none, settled});
  return space.predicted({}).step_s;
}

}  // namespace

std::uint32_t interval_for(double communication_s, double computation_s) {
  if (computation_s <= 0 || communication_s <= 0) return 1;
  const double ratio = std::ceil(communication_s / computation_s - kSlack);
  return static_cast<std::uint32_t>(std::clamp(ratio, 1.0, static_cast<double>(kMostInterval)));
}

FoundInterval find_interval(const ModelRequest& request, const std::function<bool(const SettledGradient&)>& waits) {
  CostTable costs = request.costs;
  FoundInterval found;
  for (auto& [name, gradient] : costs.gradients) gradient.ready_s.reset();
  std::vector<SettledGradient> others;
  for (const SettledGradient& gradient : request.settled) {
    if (!waits(gradient)) others.push_back(gradient);
    const auto known = request.costs.gradients.find(gradient.name);
    if (known != request.costs.gradients.end())
      found.backward_s = std::max(found.backward_s, costs.backward_s(known->second.ready_s.value_or(0)));
  }
  found.communication_s = at_once_s(request, costs, request.settled);
  const double others_s = at_once_s(request, costs, others);
  found.waiting_s = std::max(0.0, found.communication_s - others_s);
  if (found.backward_s <= 0) return found;
  // The other gradients cannot wait. If they leave no time, the interval becomes the longest one.
  const double left_s = std::max(found.backward_s - others_s, found.backward_s / (2 * kMostInterval));
  found.wanted = interval_for(found.waiting_s, left_s);
  found.steps = std::min(found.wanted, kMostFound);
  return found;
}

}  // namespace casync
