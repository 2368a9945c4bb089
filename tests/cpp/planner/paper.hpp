#pragma once

#include <cstdint>
#include <string_view>

#include "casync/error.hpp"
#include "casync/planner.hpp"

/// The paper's own cost model (section 3.3): what the planner counts in the routes' workflows is held to it where the
/// paper's assumptions hold.
namespace casync::test {

/// Table 3: how many transfers, encodes and decodes of one partition follow each other without overlap. `mergeable` is
/// the row "low-rank": payloads that merge without decoding.
struct Factors {
  double alpha = 0;
  double beta = 0;
  double gamma = 0;
};

/// As table 3 prints it. K is at most N.
inline Factors table3(std::string_view topology, std::uint32_t members, std::uint32_t partitions, bool mergeable) {
  CASYNC_CHECK(topology == "ps" || topology == "ring", topology, " is not in table 3");
  const double n = members;
  if (topology == "ring") return mergeable ? Factors{2 * (n - 1), 1, 1} : Factors{2 * (n - 1), n, n};
  return mergeable ? Factors{2 * n, 1, 1} : Factors{2 * n, static_cast<double>(partitions) + 1, n + 1};
}

/// As section 6.1 corrects it for aggregators that share the workers' machines, which is how CaSync runs them: PS saves
/// the transfers, the encode and the decode between a worker and itself.
inline Factors colocated(std::string_view topology, std::uint32_t members, std::uint32_t partitions, bool mergeable) {
  Factors factors = table3(topology, members, partitions, mergeable);
  if (topology == "ps") {
    factors.alpha -= 2;
    if (!mergeable) {
      factors.beta -= 1;
      factors.gamma -= 1;
    }
  }
  return factors;
}

/// Equations 1 and 2: a gradient of `raw` bytes, `payload` encoded. Equation 1 is that of codec `none`, whose calls
/// cost nothing.
inline double equation(const Factors& factors, std::uint32_t partitions, double seconds_per_byte,
                       const CodecCost& codec, double raw, double payload) {
  return factors.alpha * seconds_per_byte * payload / partitions +
         factors.beta * (codec.encode_fixed_s + codec.encode_s_per_byte * raw / partitions) +
         factors.gamma * (codec.decode_fixed_s + codec.decode_s_per_byte * raw / partitions);
}

}  // namespace casync::test
