#pragma once

#include <cmath>
#include <cstdint>

namespace casync::codec {

/// The contract carries the 1/N of a mean as a float32 factor. N, if `factor` is one; else 0. An uncompressed mean is
/// divided by it: then it is the nearest there is, as users know it from a division.
inline std::int64_t divisor_of(float factor) {
  const double nearest = std::nearbyint(1.0 / static_cast<double>(factor));
  if (!(nearest >= 1.0 && nearest <= 1e6) || static_cast<float>(1.0 / nearest) != factor) return 0;
  return static_cast<std::int64_t>(nearest);
}

}  // namespace casync::codec
