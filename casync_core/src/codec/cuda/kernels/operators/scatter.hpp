#pragma once

#include "codec/cuda/kernels/arrays.hpp"

namespace casync::codec::cuda {

/// n zeros, and then values[i] at index[i]. False if one of the m places is outside.
template <typename Team, typename T>
CASYNC_DEVICE bool scatter_array(const Team& team, const std::int32_t* index, const T* values, std::int64_t m,
                                 std::int64_t n, T* out) {
  for (std::int64_t i = team.rank(); i < n; i += team.size()) out[i] = T{};
  team.barrier();
  bool outside = false;
  for (std::int64_t i = team.rank(); i < m; i += team.size()) {
    const bool inside = index[i] >= 0 && index[i] < n;
    if (inside) out[index[i]] = values[i];
    outside |= !inside;
  }
  team.barrier();
  return !team.any(outside);
}

}  // namespace casync::codec::cuda
