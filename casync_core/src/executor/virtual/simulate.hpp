#pragma once

#include <cstdint>
#include <optional>
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
  double backward_s = 0;   ///< over which gradients become ready, in proportion to their sizes
  int worker_threads = 1;  ///< processors of a rank that compute codecs, unless a device does: that is one
  /// Of codecs, of messages, and of copies; what links take is said above. The codecs in `device_codecs` are computed
  /// by devices, if there are any.
  CostTable costs;
  /// Where gradients are. A device's codecs copy payloads to the host and back, at `costs.copy_s_per_byte`; codecs of
  /// the host copy the gradient. What is sent as it is takes no copies: the network reads the device's memory.
  MemoryKind memory = MemoryKind::host;
  PlannerOptions planner;
  std::optional<std::uint32_t> partitions;  ///< of each gradient, in place of what the planner finds
  std::size_t pool_bytes = kPoolBytes;      ///< of each rank, for payloads and partial sums
  std::uint64_t seed = 1;
  std::vector<GradientPlan> plans;  ///< of the gradients, in their order; empty: as the planner finds
  std::string timeline;             ///< a file, to which what rank 0 does is written as a trace; empty: none
};

struct Simulation {
  double step_s = 0;        ///< from the step's begin to the last rank's end, names agreed on before
  double busiest_sent = 0;  ///< bytes that the busiest rank sent in a step
  std::uint64_t turns = 0;
  std::vector<GradientPlan> plans;  ///< in the order of the gradients
};

/// Plans every gradient as a session would, and runs two steps in virtual time, sizes only; the second counts. Where
/// gradients go in one step of several, there are twice as many, and the mean of the second half counts. Throws
/// InvalidArgument for what no plan can carry, and for a timeline that cannot be written.
Simulation simulate(const SimulationRequest& request);

}  // namespace casync
