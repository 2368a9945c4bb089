#include "planner/cost/ready_times.hpp"

#include <algorithm>

namespace casync {

void ReadyTimes::add(const ReadyGradient& gradient) {
  auto at = gradients_.find(gradient.tensor);
  if (at == gradients_.end()) at = gradients_.try_emplace(std::string(gradient.tensor)).first;
  at->second.bytes = gradient.tensor_bytes;
  at->second.ready_s.add(gradient.ready_s);
  at->second.worked_s.add(gradient.worked_s);
}

void ReadyTimes::tell(std::map<std::string, MeasuredGradient, std::less<>>& gradients) const {
  for (const auto& [tensor, gradient] : gradients_) {
    MeasuredGradient& told = gradients[tensor];
    told.bytes = gradient.bytes;
    told.ready_s = std::ranges::min(gradient.ready_s.values());
    told.worked_s = std::ranges::min(gradient.worked_s.values());
  }
}

}  // namespace casync
