#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace casync::test {

/// What a route costs, worked out by hand: what the planner counts is held to it. Bytes are payload bytes of the whole
/// gradient in one direction of the busiest rank's link.
struct Statement {
  std::uint32_t hops = 0;  ///< messages in a row on the critical path of one partition
  double bytes =
      0;  ///< per direction at the busiest rank; two_level: at the busiest host, plus what one rank hands over inside
  std::uint32_t messages = 0;  ///< sent by the busiest rank, per gradient
  std::uint32_t encodes = 0;   ///< on the critical path of one partition
  std::uint32_t decodes = 0;
};

/// `payload` is the encoded size of the whole gradient, `raw` its size uncompressed, both in bytes.
Statement state_costs(std::string_view topology, std::span<const std::uint32_t> host_of, std::uint32_t partitions,
                      double payload, double raw, bool identity);

}  // namespace casync::test
