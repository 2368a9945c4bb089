#pragma once

#include <vector>

#include "casync/planner.hpp"

namespace casync {

/// All ways to synchronise a gradient whose codec is left open: each candidate by each of CaSync's routes that carries
/// it, or by the one that is named, with the partitions that suit it best alone and with as few as may be. Throws as
/// plan_gradient does.
std::vector<Alternative> ways_of(const PlanRequest& request);

/// The same by lists of phases (routes/phase_list.hpp) that no route of another name is, with the partitions that suit
/// them best alone. Of those with one owner for all partitions there are none, because they never take less than the
/// same with several; and none where a topology is named, in worlds without levels, and in such of more members
/// than the options say.
std::vector<Alternative> listed_ways_of(const PlanRequest& request);

}  // namespace casync
