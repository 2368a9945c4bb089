#include "planner/cost/ready_times.hpp"

#include <algorithm>

namespace casync {

void ReadyTimes::add(std::string_view tensor, double tensor_bytes, double ready_s) {
  auto at = gradients_.find(tensor);
  if (at == gradients_.end()) at = gradients_.try_emplace(std::string(tensor)).first;
  at->second.bytes = tensor_bytes;
  at->second.ready_s.add(ready_s);
}

void ReadyTimes::tell(std::map<std::string, MeasuredGradient, std::less<>>& gradients) const {
  for (const auto& [tensor, gradient] : gradients_) {
    MeasuredGradient& told = gradients[tensor];
    told.bytes = gradient.bytes;
    told.ready_s = std::ranges::min(gradient.ready_s.values());
  }
}

}  // namespace casync
