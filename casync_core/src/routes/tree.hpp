#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routes/flat.hpp"

namespace casync {

/// The ways of one partition between the members of a route: sums go up a tree to its root, the result goes down one.
struct Ways {
  std::uint32_t root = 0;
  std::vector<std::uint32_t> sums_to;      ///< per member: who takes its sum; the root: itself
  std::vector<std::uint32_t> result_from;  ///< per member: who sends it the result; the root: itself
};

/// What cannot go by ways: payloads that are merged in rounds, and ops that take all contributions at one place.
std::optional<std::string> why_not_by_ways(const RouteRequest& request);

/// Lays out one member's part of one partition. A member adds what it receives to its own in member order, encodes the
/// sum and passes it on; the root encodes once more, and all decode the same bytes. The root takes the mean; of
/// `gather` codecs who decodes does, as in a ring. Returns the payload of the result, or without a codec the result.
std::vector<Buffer> build_ways(PartitionBuilder& builder, const Ways& ways);

}  // namespace casync
