#pragma once

#include "codec/cuda/kernels/device.hpp"

/// One launch for several gradients.
namespace casync::codec::cuda {

/// What a kernel is launched with: its arguments for each gradient. The work of all of them is one row of items, say
/// units, which teams take one by one.
template <typename Arguments>
struct Many {
  const Arguments* each = nullptr;      ///< of each gradient, in device memory; null: there is one, which has `only`
  const std::int64_t* first = nullptr;  ///< the first item of each, and the end of the last one's
  std::int64_t count = 1;
  std::int64_t items = 0;
  Arguments only = {};

  CASYNC_DEVICE const Arguments& of(std::int64_t gradient) const { return each == nullptr ? only : each[gradient]; }
  CASYNC_DEVICE std::int64_t begin(std::int64_t gradient) const { return each == nullptr ? 0 : first[gradient]; }
  /// The gradient that has the item.
  CASYNC_DEVICE std::int64_t owner(std::int64_t item) const {
    std::int64_t found = 0;
    for (std::int64_t end = count; end - found > 1;) {
      const std::int64_t middle = (found + end) / 2;
      if (first[middle] <= item)
        found = middle;
      else
        end = middle;
    }
    return found;
  }
};
template <typename Arguments, typename F>
void visit_pointers(Many<Arguments>& many, const F& f) {
  f(many.each);
  f(many.first);
  visit_pointers(many.only, f);
}

/// A kernel: program(team, arguments, item) for each item.
template <typename Team, typename Arguments, typename Program>
CASYNC_DEVICE void work_off(const Team& team, const Many<Arguments>& many, const Program& program) {
  for (std::int64_t item = team.index(); item < many.items; item += team.count()) {
    const std::int64_t gradient = many.owner(item);
    program(team, many.of(gradient), item - many.begin(gradient));
  }
}

}  // namespace casync::codec::cuda
