#pragma once

#include <cstdint>
#include <vector>

#include "routes/flat.hpp"

namespace casync {

/// The ways of one partition between the members of a group: sums go up a tree to its root, the result goes down one.
struct Ways {
  std::uint32_t root = 0;
  std::vector<std::uint32_t> sums_to;      ///< per member: who takes its sum; the root: itself
  std::vector<std::uint32_t> result_from;  ///< per member: who sends it the result; the root: itself
};

/// Lays out one member's part of one partition. A member adds what it receives to its own in member order, encodes the
/// sum and passes it on; the root takes the mean and encodes once more; all decode the same bytes. Returns the payload
/// of the result, or without a codec the result.
Buffer lay_ways(Group& group, const Ways& ways);

}  // namespace casync
