#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>

#include "casync/planner.hpp"

namespace casync {

/// As Python gives them, by canonical spec: seconds of a call that encodes, per call and per raw byte, and likewise of
/// one that decodes.
using CodecSeconds = std::map<std::string, std::array<double, 4>>;

inline std::map<std::string, CodecCost, std::less<>> codec_costs(const CodecSeconds& seconds) {
  std::map<std::string, CodecCost, std::less<>> costs;
  for (const auto& [spec, one] : seconds) costs[spec] = {one[0], one[1], one[2], one[3]};
  return costs;
}

}  // namespace casync
