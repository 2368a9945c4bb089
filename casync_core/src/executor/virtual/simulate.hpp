#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "casync/coordinator.hpp"
#include "casync/planner.hpp"
#include "executor/virtual/network.hpp"

namespace casync {

/// A data-parallel step to be predicted: what `casync simulate` asks.
struct SimulationRequest {
  std::vector<Shape>
      gradients;  ///< float32, in the order of the forward pass; they become ready from the last to the first
  std::vector<std::uint32_t> host_of;  ///< per rank
  LinkSpeed between{};                 ///< hosts
  LinkSpeed within{1e10, 2'000};       ///< ranks of a host
  std::string compression = "none";    ///< as a user writes it
  std::string topology = "auto";
  CoordinatorOptions coordinator;
  double backward_s = 0;  ///< over which gradients become ready, in proportion to their sizes
  int worker_threads = 1;
  CostTable costs;  ///< of codecs; the links' are those above
  PlannerOptions planner;
  std::uint64_t seed = 1;
};

struct Simulation {
  double step_s = 0;        ///< from the step's begin to the last rank's end, names agreed on before
  double busiest_sent = 0;  ///< bytes that the busiest rank sent in a step
  std::uint64_t turns = 0;
};

/// Plans every gradient as a session would, and runs two steps in virtual time, sizes only; the second counts. Where
/// gradients go in one step of several, there are twice as many, and the mean of the second half counts. Throws
/// InvalidArgument for what no plan can carry.
Simulation simulate(const SimulationRequest& request);

}  // namespace casync
