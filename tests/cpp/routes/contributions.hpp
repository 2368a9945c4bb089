#pragma once

#include <string>

#include "collectives/global_graph.hpp"

namespace casync::test {

/// What is wrong with an allreduce's way for contributions, in words: "of partition 2 rank 0 gets rank 3's contribution
/// twice". Empty if every contribution reaches every rank exactly once.
std::string misrouted(const GlobalGraph& graph);

}  // namespace casync::test
