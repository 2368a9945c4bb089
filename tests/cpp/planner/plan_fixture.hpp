#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "casync/planner.hpp"
#include "planner/cost/world.hpp"

namespace casync {

inline std::vector<std::uint32_t> separate_hosts(std::uint32_t members) {
  std::vector<std::uint32_t> host_of;
  for (std::uint32_t m = 0; m < members; ++m) host_of.push_back(m);
  return host_of;
}

inline std::vector<std::uint32_t> shared_hosts(std::uint32_t hosts, std::uint32_t ranks) {
  std::vector<std::uint32_t> host_of;
  for (std::uint32_t m = 0; m < hosts * ranks; ++m) host_of.push_back(m / ranks);
  return host_of;
}

inline Signature gradient_of(std::int64_t numel, std::string compression = "none", std::string topology = "auto") {
  Signature signature;
  signature.shape = {numel, 1};
  signature.dims = detail::concat("(", numel, ",)");
  signature.compression = std::move(compression);
  signature.topology = std::move(topology);
  return signature;
}

/// Four hosts on 1 Gbit/s, with the priors for codecs, unless a test says otherwise.
class PlanTest : public ::testing::Test {
 protected:
  PlanTest() { costs.inter.seconds_per_byte = 8e-9; }

  Decision plan(const Signature& signature, std::uint32_t sequence = 0) const {
    const World world(host_of);
    return plan_gradient({"conv1.weight", signature, world, costs, options, load, sequence});
  }

  /// The message of the InvalidArgument that planning ends in; empty if it does not.
  std::string refusal(const Signature& signature) const;

  std::vector<std::uint32_t> host_of = separate_hosts(4);
  CostTable costs;
  PlannerOptions options;
  OwnerLoad load;
};

}  // namespace casync
