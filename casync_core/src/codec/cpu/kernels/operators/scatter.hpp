#pragma once

#include "codec/cpu/kernels/arrays.hpp"

namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// n zeros, and then values[i] at index[i]. False if one of the m places is outside. Both arrays may be in a payload.
template <typename T>
CASYNC_INLINE bool scatter_array(const std::int32_t* index, const T* values, std::int32_t m, std::int64_t n, T* out) {
  __builtin_memset(out, 0, static_cast<std::size_t>(n) * sizeof *out);
  for (std::int32_t i = 0; i < m; ++i) {
    const std::int32_t place = pick(index, i);
    if (place < 0 || place >= n) return false;
    out[place] = pick(values, i);
  }
  return true;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
