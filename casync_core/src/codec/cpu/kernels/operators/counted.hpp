#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// Arrays of a payload whose lengths stand in the payload: none of it may be believed.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Bytes of an array of `count` elements of `bits` bits.
CASYNC_INLINE std::int64_t packed_bytes(std::int64_t count, int bits) { return (count * bits + 7) / 8; }

/// Whether such an array lies between `at` and `end`.
CASYNC_INLINE bool fits(const std::byte* at, const std::byte* end, std::int64_t count, int bits) {
  return packed_bytes(count, bits) <= end - at;
}

/// The count at `at`, behind which an array of as many elements must lie before `end`; -1 if it does not, or would have
/// more than `most` elements.
CASYNC_INLINE std::int64_t counted(const std::byte* at, const std::byte* end, std::int64_t most, int bits) {
  if (end - at < 4) return -1;
  std::uint32_t count = 0;
  __builtin_memcpy(&count, at, sizeof count);
  return count <= most && fits(at + 4, end, count, bits) ? static_cast<std::int64_t>(count) : -1;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
