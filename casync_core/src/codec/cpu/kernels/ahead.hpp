#pragma once

#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// Fetching what a loop will read shortly, where reading() says that the processor does too little of that by itself.
/// Distances are bytes, the best that were seen with 4 KiB pages. 0 asks for what is read next anyway: a branch around
/// it would cost more. Any address is harmless.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

constexpr std::int64_t kPageAhead = 4096;

CASYNC_INLINE void fetch_ahead(const void* now, std::int64_t distance) {
  __builtin_prefetch(static_cast<const char*>(now) + distance);
}

CASYNC_INLINE void fetch_to_second_level(const void* what) { __builtin_prefetch(what, 0, 2); }

/// Of streams that are read, or written over in the same pass.
CASYNC_INLINE std::int64_t page_ahead() { return reading() == Reading::in_order ? 0 : kPageAhead; }

/// Of gradient and residual, in the first pass over a unit. `last`: whether no other one follows that fetches the next
/// unit. On Sapphire Rapids more than this of two streams would push out of the first-level cache what the second pass
/// needs.
CASYNC_INLINE std::int64_t unit_ahead(bool two_streams, bool last) {
  if (reading() == Reading::side_by_side) return two_streams ? 512 : kPageAhead;
  return last ? page_ahead() : 0;
}
/// Of the next unit, in the last of several passes over this one: memory would rest while they compute.
CASYNC_INLINE std::int64_t next_unit_ahead(std::int64_t elements) {
  return reading() == Reading::fetched ? 4 * elements : 0;
}

/// Of what is added to or taken off. That may come from tables, which are copied between blocks: memory should not rest
/// meanwhile.
CASYNC_INLINE std::int64_t delivery_ahead() { return page_ahead() * 3 / 2; }

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
