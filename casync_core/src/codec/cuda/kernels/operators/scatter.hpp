#pragma once

#include "codec/cuda/kernels/arrays.hpp"

namespace casync::codec::cuda {

/// n zeros, and then values[i] at index[i]. False if one of the m places is outside. Both arrays may be in a payload.
template <typename Team, typename Index, typename Values, typename T>
CASYNC_DEVICE bool scatter_array(const Team& team, Index index, Values values, std::int64_t m, std::int64_t n, T* out) {
  for (std::int64_t i = team.rank(); i < n; i += team.size()) out[i] = T{};
  team.barrier();
  bool outside = false;
  for (std::int64_t i = team.rank(); i < m; i += team.size()) {
    const std::int32_t place = at(index, i);
    const bool inside = place >= 0 && place < n;
    if (inside) out[place] = at(values, i);
    outside |= !inside;
  }
  team.barrier();
  return !team.any(outside);
}

}  // namespace casync::codec::cuda
