#pragma once

#include <vector>

#include "casync/planner.hpp"

namespace casync {

/// All ways to synchronise a gradient whose codec is left open: each candidate by each of CaSync's routes that carries
/// it, or by the one that is named, with the partitions that suit it best alone and with as few as may be. Throws as
/// plan_gradient does.
std::vector<Alternative> ways_of(const PlanRequest& request);

}  // namespace casync
