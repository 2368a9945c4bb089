#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/operators/select.hpp"

/// The element that a sort would put at a position, without sorting (`sort(G, f)[k]`), and the k elements of the
/// largest magnitudes. Four histograms of eight bits each lead to the key at the position. Floats are ordered by
/// integer keys, so that the order is total: -0 comes before +0.
namespace casync::codec::cuda {

/// Unsigned keys in the order of the elements, and in that of their magnitudes.
CASYNC_DEVICE std::uint32_t key_of(float value) {
  const std::uint32_t pattern = bits(bit_pattern(value));
  return (pattern & 0x80000000U) != 0 ? ~pattern : pattern | 0x80000000U;
}
CASYNC_DEVICE float of_key(std::uint32_t key) {
  return of_pattern(static_cast<std::int32_t>((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key));
}
CASYNC_DEVICE std::uint32_t magnitude_key(float value) { return bits(bit_pattern(value)) & 0x7fffffffU; }

/// What is at a position: its key, and how many elements come before all of that key.
struct Position {
  std::uint32_t key;
  std::int64_t before;
};

/// The position k, 0 <= k < n, from the largest key downwards. `work` has room for 256 counts.
template <typename Team, typename Key>
CASYNC_DEVICE Position at_rank(const Team& team, float* work, std::int64_t n, std::int64_t k, const Key& key) {
  auto* const counts = reinterpret_cast<std::int32_t*>(work);
  std::uint32_t known = 0;
  std::int64_t before = 0;
  for (int lowest = 24; lowest >= 0; lowest -= 8) {
    for (std::int64_t digit = team.rank(); digit < 256; digit += team.size()) counts[digit] = 0;
    team.barrier();
    for (std::int64_t i = team.rank(); i < n; i += team.size()) {
      const std::uint32_t one = key(i);
      if (lowest == 24 || one >> (lowest + 8) == known) team.count_one(counts + (one >> lowest & 0xffU));
    }
    team.barrier();
    std::uint32_t digit = 255;
    for (; before + counts[digit] <= k; --digit) before += counts[digit];
    known = known << 8 | digit;
    team.barrier();
  }
  return {known, before};
}

/// The element at position k, held between 0 and n - 1, of the values in descending order; 0 if there are none.
template <typename Team, typename Source>
CASYNC_DEVICE float nth_largest(const Team& team, float* work, Source values, std::int64_t n, std::int64_t k) {
  if (n == 0) return 0.0F;
  k = smaller(larger(k, std::int64_t{0}), n - 1);
  return of_key(at_rank(team, work, n, k, [&](std::int64_t i) { return key_of(at(values, i)); }).key);
}
/// The same in ascending order.
template <typename Team, typename Source>
CASYNC_DEVICE float nth_smallest(const Team& team, float* work, Source values, std::int64_t n, std::int64_t k) {
  return nth_largest(team, work, values, n, n - 1 - larger(k, std::int64_t{0}));
}

/// Ties go to the lower index; the chosen are in order of index. k is held between 0 and n, and returned.
template <typename Team, typename Source>
CASYNC_DEVICE std::int64_t topk(const Team& team, float* work, Source values, std::int64_t n, std::int64_t k,
                                std::int32_t* index_out, float* value_out) {
  k = smaller(larger(k, std::int64_t{0}), n);
  if (k == 0) return 0;
  const auto key = [&](std::int64_t i) { return magnitude_key(at(values, i)); };
  const Position last = at_rank(team, work, n, k - 1, key);
  // The index of the last tie that is chosen, found as the one at its place among ties.
  const std::int64_t ties = k - last.before;
  auto* const last_tie = reinterpret_cast<std::int64_t*>(work);
  select(
      team, n, [&](std::int64_t i) { return key(i) == last.key; },
      [&](std::int64_t i, std::int64_t place) {
        if (place == ties - 1) *last_tie = i;
      });
  const std::int64_t end = *last_tie;
  select(
      team, n, [&](std::int64_t i) { return key(i) > last.key || (key(i) == last.key && i <= end); },
      [&](std::int64_t i, std::int64_t place) {
        index_out[place] = static_cast<std::int32_t>(i);
        value_out[place] = at(values, i);
      });
  return k;
}

}  // namespace casync::codec::cuda
