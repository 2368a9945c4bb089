#pragma once

#include "codec/cuda/kernels/operators/topk.hpp"

/// A radix sort by one bit at a time, in which a scan tells the elements of either side their places: order among
/// equals stays, and zeros of either sign are equal.
namespace casync::codec::cuda {

CASYNC_DEVICE std::uint32_t sort_key(float value) { return key_of(value); }
CASYNC_DEVICE std::uint32_t sort_key(std::int32_t value) { return bits(value) ^ 0x80000000U; }

/// `out` and `spare` have room for n elements.
template <bool kDescending, typename Team, typename Source, typename T>
CASYNC_DEVICE void stable_sort(const Team& team, Source values, std::int64_t n, T* out, T* spare) {
  for (std::int64_t i = team.rank(); i < n; i += team.size()) out[i] = at(values, i);
  team.barrier();
  T* from = out;
  T* to = spare;
  for (int bit = 0; bit < 32; ++bit) {
    const auto first = [&](std::int64_t i) { return (sort_key(from[i]) >> bit & 1U) == (kDescending ? 1U : 0U); };
    const auto move = [&](std::int64_t begin) {
      return [=](std::int64_t i, std::int64_t place) { to[begin + place] = from[i]; };
    };
    const std::int64_t count = select(team, n, first, move(0));
    select(team, n, [&](std::int64_t i) { return !first(i); }, move(count));
    T* const sorted = to;
    to = from;
    from = sorted;
  }
}

}  // namespace casync::codec::cuda
