#pragma once

#include <cstddef>
#include <cstdint>

/// What the kernel of copy.hpp is launched with, as arguments.hpp has it for those of codecs.
namespace casync::codec::cuda {

/// Bytes between the device and pinned memory of the host.
struct CopyBatch {
  static constexpr std::int64_t kPiece = 16384;  ///< an item

  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  const std::int64_t* length = nullptr;  ///< how many, if the host does not know it; else null
  std::int64_t bytes = 0;                ///< how many, or the most that `length` says
};
template <typename F>
void visit_pointers(CopyBatch& copy, const F& f) {
  f(copy.from);
  f(copy.to);
  f(copy.length);
}
static_assert(sizeof(CopyBatch) == 32, "visit_pointers lists each pointer");

}  // namespace casync::codec::cuda
