#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/operators/select.hpp"

/// Runs: `runlength` finds those of one value, `repeat` writes values as often as counts say.
namespace casync::codec::cuda {

/// Runs of `value`, each as long as it can be but no longer than `longest` >= 1, and every other element alone, put
/// away by put(place, head, length). Returns how many there are. What precedes a thread's sixteen elements is known
/// from a scan for the last other element.
template <typename Team, typename Source, typename Put>
CASYNC_DEVICE std::int64_t runlength(const Team& team, Source values, std::int64_t n, std::int32_t value,
                                     std::int64_t longest, const Put& put) {
  std::int64_t runs = 0;
  std::int64_t last_other = -1;  // before this tile
  for (std::int64_t tile = 0; tile < n; tile += 16 * team.size()) {
    const std::int64_t first = tile + 16 * team.rank();
    const std::int64_t end = smaller(first + 16, n);
    std::int64_t other = -1;
    for (std::int64_t i = first; i < end; ++i)
      if (at(values, i) != value) other = i;
    std::int64_t last_of_tile = -1;
    std::int64_t before = team.template scan<Larger>(other, std::int64_t{-1}, last_of_tile);
    before = larger(before, last_other);
    const auto begins = [&](std::int64_t i) {
      if (at(values, i) == value) return (i - before - 1) % longest == 0;
      before = i;
      return true;
    };
    const std::int64_t before_all = before;
    std::int32_t count = 0;
    for (std::int64_t i = first; i < end; ++i) count += begins(i) ? 1 : 0;
    std::int32_t total = 0;
    std::int64_t place = runs + team.template scan<Add>(count, 0, total);
    before = before_all;
    for (std::int64_t i = first; i < end; ++i) {
      if (!begins(i)) continue;
      std::int64_t length = 1;
      if (at(values, i) == value)
        while (length < longest && i + length < n && at(values, i + length) == value) ++length;
      put(place++, at(values, i), static_cast<std::int32_t>(length));
    }
    runs += total;
    last_other = larger(last_other, last_of_tile);
  }
  team.barrier();
  return runs;
}

/// values(0) counts(0) times, values(1) counts(1) times, ... False, and nothing is written, if the m counts, of which
/// none may be negative, do not add up to n.
template <typename Team, typename Values, typename Counts, typename T>
CASYNC_DEVICE bool repeat(const Team& team, const Values& values, const Counts& counts, std::int64_t m, std::int64_t n,
                          T* out) {
  bool negative = false;
  std::int64_t sum = 0;
  for (std::int64_t i = team.rank(); i < m; i += team.size()) {
    negative |= counts(i) < 0;
    sum += counts(i);
  }
  std::int64_t total = 0;
  team.template scan<Add>(sum, std::int64_t{0}, total);
  if (team.any(negative) || total != n) return false;
  std::int64_t written = 0;
  for (std::int64_t tile = 0; tile < m; tile += team.size()) {
    const std::int64_t i = tile + team.rank();
    const std::int64_t count = i < m ? counts(i) : 0;
    std::int64_t place = written + team.template scan<Add>(count, std::int64_t{0}, total);
    for (std::int64_t k = 0; k < count; ++k) out[place + k] = static_cast<T>(values(i));
    written += total;
  }
  team.barrier();
  return true;
}

}  // namespace casync::codec::cuda
