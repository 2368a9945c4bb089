#pragma once

#include "codec/cuda/kernels/reduce.hpp"

/// Compaction in order, which is what `filter` and `topk` are made of: each thread looks at sixteen neighbours, and a
/// scan over what they chose says where theirs begin.
namespace casync::codec::cuda {

/// keep(i, place) for each i in [0, length) of which `chosen` says true, with the number of those before it. Returns
/// how many there are.
template <typename Team, typename Chosen, typename Keep>
CASYNC_DEVICE std::int64_t select(const Team& team, std::int64_t length, const Chosen& chosen, const Keep& keep) {
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < length; tile += 16 * team.size()) {
    const std::int64_t first = tile + 16 * team.rank();
    std::uint32_t mask = 0;
    std::int32_t here = 0;
    for (int k = 0; k < 16; ++k)
      if (first + k < length && chosen(first + k)) {
        mask |= 1U << k;
        ++here;
      }
    std::int32_t total = 0;
    std::int64_t place = count + team.template scan<Add>(here, 0, total);
    for (int k = 0; k < 16; ++k)
      if ((mask >> k & 1U) != 0) keep(first + k, place++);
    count += total;
  }
  team.barrier();
  return count;
}

}  // namespace casync::codec::cuda
